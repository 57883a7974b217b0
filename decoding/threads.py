"""Sets the number of threads in which an engine's CPU operations run.

OpenMP gives helper threads to each thread that calls it, and GNU's lets helpers sleep between operations once the
process has more of them than cores: then waking them takes longer than most operations of a small model. Engines and
readers run in worker threads beside the caller's. So each worker computes in one thread, side by side on different
cores, and uses helper threads where a round is long enough to pay for waking them. A compiled round shares them
with other workers that have work.

The number that a program gives `torch.set_num_threads` limits matrix products of all threads, the workers' too; one
given as `OMP_NUM_THREADS` is the maximum for a long round.

A forked process computes in one thread: helper threads do not survive a fork, and GNU's OpenMP waits for them for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

import torch

from decoding.compiling_process import is_compiling_drafts

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

MIN_PARALLEL_PRODUCTS = 10**9
"""Multiplications of a round from which on helper threads pay, measured on 2 cores: rounds of the bundled target (1.7 M
weights) took 2.3 times as long with a helper for 16 tokens, 1.1 times for 512 and 0.8 times for 1024; those of a model
of 119 M weights took 0.85 times as long for one token."""

MIN_THREAD_PRODUCTS = 15 * 10**7
"""Multiplications of a compiled round for each of its threads, at least. They wait for each other without the system
(see `thread_team`), so help pays earlier: rounds of the bundled target took .97 times as long with a helper for 8
tokens and .83 times for 64. But where both threads had one core, 1.8 and 1.2 times."""

MIN_SHARED_PRODUCTS = 16 * 10**6
"""The same where threads take rows from each other: they wait once in a layer, and for no helper that has not begun,
but for one that is stopped within its part. Rounds of the bundled target in bfloat16 took .7 to 1 times as long with a
helper for 16 rows and .55 to .75 times for 144, on a machine whose two cores are at times one. Whole runs beside other
processes on all cores took 1.1 times as long."""

MIN_SHARED_ROWS = 8
"""Rows of each of these threads, at least: of fewer a product takes longer for each."""

TOKENS_PER_WEIGHT_READ = 8
"""Reading a weight from memory takes as long as this many multiplications with it."""

_worker = threading.local()  # `num_threads` before `use_one_thread`, in worker threads only
_in_use: dict[int, int] = {}  # worker that has work -> threads that its last call had


def _begin_fork() -> None:
    torch.set_num_threads(1)
    _in_use.clear()


# Not where an engine is opened: the first operation in the forked process hangs, and that may be the caller's own.
os.register_at_fork(after_in_child=_begin_fork)


def use_one_thread() -> None:
    """Makes later operations of the calling thread run in it alone. Other threads keep their number."""
    _worker.num_threads = torch.get_num_threads()
    # no `with`: the limit holds until the thread ends
    limit_threads(1)


def with_helper_threads(num_weights: int, num_tokens: int) -> AbstractContextManager[object]:
    """Returns the context of a forward pass through `num_weights` weights: with helper threads where they pay."""
    if _count_products(num_weights, num_tokens) < MIN_PARALLEL_PRODUCTS:
        return nullcontext()
    # None in a thread without `use_one_thread`, which keeps its number
    return limit_threads(getattr(_worker, "num_threads", None))


def count_threads(num_weights: int, num_tokens: int) -> int:
    """Returns in how many threads a compiled forward pass through `num_weights` weights is to run."""
    return choose_threads(_count_products(num_weights, num_tokens) // MIN_THREAD_PRODUCTS)


def count_sharing_threads(num_weights: int, num_tokens: int) -> int:
    """Returns the same where threads take rows from each other, of layers that the cache holds."""
    # beside a process that compiles, a helper is stopped within its part: the first start took 2 s longer
    if is_compiling_drafts():
        return 1
    useful = _count_products(num_weights, num_tokens) // MIN_SHARED_PRODUCTS
    return choose_threads(min(useful, num_tokens // MIN_SHARED_ROWS))


def choose_threads(useful: int) -> int:
    """Returns in how many threads work is to run that pays for at most `useful`.

    Up to an equal share of them, beside other workers that have work, and what these leave of theirs. For compiled
    loops alone, whose results do not depend on it.
    """
    me, most = threading.get_ident(), getattr(_worker, "num_threads", None) or torch.get_num_threads()
    others = [used for worker, used in tuple(_in_use.items()) if worker != me]
    count = max(1, min(useful, max(most // (1 + len(others)), most - sum(others))))
    if me in _in_use:
        _in_use[me] = count
    return count


@contextmanager
def having_work() -> Iterator[None]:
    """Counts the calling worker among those that have work, and so a core each.

    Where a reader and an engine had two threads each on two cores, threads of a team waited for one that had no core:
    the default run took 1.1 to 1.4 times as long.
    """
    me = threading.get_ident()
    _in_use[me] = 1
    try:
        yield
    finally:
        _in_use.pop(me, None)  # a fork has no other workers


def limit_threads(count: int | None) -> AbstractContextManager[object]:
    """Runs operations of the calling thread in `count` threads, from the call to the end of the context.

    `None` changes nothing. Unlike after `torch.set_num_threads`, other threads keep their number.
    """
    return nullcontext() if count is None else _openmp_controller().limit(limits=count)


def _count_products(num_weights: int, num_tokens: int) -> int:
    """Multiplications of a forward pass; reading the weights counts as some."""
    return num_weights * (num_tokens + TOKENS_PER_WEIGHT_READ)


@cache
def _openmp_controller() -> ThreadpoolController:
    # here, since SGLang's environments may lack it; cached: the controller searches all libraries that are loaded
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="openmp")
