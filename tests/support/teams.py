"""What tests of teams of threads share: another team that has the cores, and a process forked from this one."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from decoding.thread_team import run_in_team


@contextmanager
def running_team() -> Iterator[None]:
    """Has a team of two run in another thread meanwhile."""
    started, may_end = threading.Event(), threading.Event()

    def hold(thread: int, num_threads: int, barrier: object) -> None:
        started.set()
        assert may_end.wait(60)

    with ThreadPoolExecutor(1) as other:
        first = other.submit(run_in_team, 2, hold)
        assert started.wait(60)
        yield
        may_end.set()
        first.result(60)


def require_here_and_in_fork(check: Callable[[], None]) -> None:
    """Calls `check` here, and then in a process forked from this one. Raises: AssertionError where it fails."""
    check()
    child = multiprocessing.get_context("fork").Process(target=check)
    child.start()
    child.join(60)
    assert child.exitcode == 0
