"""Runs compiled code in several threads at once, for rounds that are long enough to pay for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from decoding.team_barrier import new_barrier

_lock = threading.Lock()


def run_in_team(num_threads: int, function: Callable[..., None], *args: object) -> None:
    """Calls `function(thread, num_threads, barrier, *args)` for thread 0 to `num_threads - 1` at once; waits for all.

    The functions share the work by their number, and wait for each other at the barrier (`wait_for_team`). They hold no
    lock of Python and raise nothing: the others would wait for ever. While another team runs, which has the cores, one
    thread does it all.
    """
    if num_threads > 1 and _lock.acquire(blocking=False):
        try:
            if (helpers := _open_helpers(num_threads - 1)) is not None:
                barrier = new_barrier()
                others = [
                    helpers.submit(function, thread, num_threads, barrier, *args) for thread in range(1, num_threads)
                ]
                function(0, num_threads, barrier, *args)
                for other in others:
                    other.result()
                return
        finally:
            _lock.release()
    function(0, 1, new_barrier(), *args)


@cache
def _open_helpers(count: int) -> ThreadPoolExecutor | None:
    """Returns threads that have all been started, or None where the system gives no more.

    A thread that cannot be started later would leave the others waiting for it.
    """
    helpers, all_here = ThreadPoolExecutor(count, thread_name_prefix="decoder"), threading.Barrier(count + 1)
    try:
        for _ in range(count):
            helpers.submit(all_here.wait)
        all_here.wait()
    except RuntimeError:
        all_here.abort()
        helpers.shutdown()
        return None
    return helpers


def forget_helpers() -> None:
    """Makes the next team start threads of its own."""
    global _lock
    _lock = threading.Lock()
    _open_helpers.cache_clear()


# The threads of a process are not those of a process forked from it.
os.register_at_fork(after_in_child=forget_helpers)
