"""Sets the number of threads in which an engine's CPU operations run.

OpenMP gives helper threads to each thread that calls it, and GNU's lets helpers sleep between operations once the
process has more of them than cores: then waking them takes longer than most operations of a small model. Engines and
readers run in worker threads beside the caller's. So each worker computes in one thread, side by side on different
cores, and uses helper threads where a round is long enough to pay for waking them.

The number that a program gives `torch.set_num_threads` limits matrix products of all threads, the workers' too; one
given as `OMP_NUM_THREADS` is the maximum for a long round.

A forked process computes in one thread: helper threads do not survive a fork, and GNU's OpenMP waits for them for ever.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

import torch

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

TOKENS_PER_WEIGHT_READ = 8
"""Reading a weight from memory takes as long as this many multiplications with it."""

_worker = threading.local()  # `num_threads` before `use_one_thread`, in worker threads only


# Not where an engine is opened: the first operation in the forked process hangs, and that may be the caller's own.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


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


def choose_threads(useful: int) -> int:
    """Returns in how many threads work is to run that pays for at most `useful`."""
    return max(1, min(useful, getattr(_worker, "num_threads", None) or torch.get_num_threads()))


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
