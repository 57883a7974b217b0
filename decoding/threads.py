"""How many threads an engine's CPU operations run in.

OpenMP gives each thread that calls it helpers of its own, and GNU's lets helpers sleep between operations once
there are more of them in the process than cores: then waking them takes longer than most operations of a small
model. Engines and readers work in threads of their own, beside the caller's. So they work alone, side by side on
different cores, and call for helpers where a round is long enough to pay for that.

The number that a program gives `torch.set_num_threads` binds matrix products of all threads, these too; one given as
`OMP_NUM_THREADS` is the most that a long round gets.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

WORTH_HELP = 10**9
"""Multiplications of a round from which on helpers paid, on 2 cores: those of the bundled target (1.7 M weights)
took 2.3 times as long with one for 16 rows, 1.1 times for 512 and 0.8 times for 1024; those of a model of 119 M
weights took 0.85 times as long for one row."""

ROWS_OF_A_READ = 8
"""Reading a weight from memory takes as long as so many multiplications with it."""

_this = threading.local()


def work_alone() -> None:
    """From now on operations of the calling thread run in it alone. Other threads keep what they have."""
    _this.helped = torch.get_num_threads()
    threads(1)


def helped(weights: int, rows: int) -> AbstractContextManager[Any]:
    """Around a forward pass of `rows` rows through `weights` weights: with helpers, where they pay."""
    if weights * (rows + ROWS_OF_A_READ) < WORTH_HELP:
        return nullcontext()
    return threads(getattr(_this, "helped", None))


def threads(count: int | None) -> AbstractContextManager[Any]:
    """Operations of the calling thread run in `count` threads, from the call to the end of the context; `None`
    changes nothing. Unlike after `torch.set_num_threads` other threads keep what they have."""
    return nullcontext() if count is None else _openmp().limit(limits=count)


@cache
def _openmp() -> Any:
    return ThreadpoolController().select(user_api="openmp")
