"""Computes the logarithm of each row's sum of exp(logits) on a CPU, in one compiled call. Needs Numba.

The eight operations of PyTorch's do the same, each with machine code that a forward pass has driven from the cache.

Shapes: T rows of logits, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled, compiled_in_place
from decoding.sampler_kernels import RUN
from decoding.sampling_vectors import copy_run
from decoding.vector_emitter import LANES
from decoding.vector_kernels import exponentiate

Floats = npt.NDArray[np.float32]


@compiled
def sum_exponentials(logits_TV: Floats, logsumexp_T1: Floats) -> None:
    """Writes log(sum(exp(logits))) of each row, which has the same bits whatever the other rows are."""
    run = np.empty(RUN + LANES, dtype=np.float32)
    for t in range(len(logits_TV)):
        row = logits_TV[t]
        largest, total = -np.inf, 0.0
        for start in range(0, len(row), RUN):
            count = min(RUN, len(row) - start)
            largest, total = add_run(run, count, copy_run(row, start, count, run), largest, total)
        logsumexp_T1[t, 0] = largest + np.log(total)


@compiled_in_place
def add_run(run: Floats, count: int, largest_of_run: np.float32, largest: float, total: float) -> tuple[float, float]:
    """Returns the largest logit so far, and the sum of exp(logit - largest); `largest` and `total` before this run.

    The exponentials of a run are added in float32, and their sums in float64. NaN is no larger than any number, and
    comes out of the sum. *Mutates* the run.
    """
    sum_of_run = exponentiate(run, 0, count)
    if largest_of_run == -np.inf and sum_of_run == sum_of_run:
        return largest, total  # all of them are -inf
    if largest_of_run > largest:
        total *= np.exp(largest - largest_of_run)
        largest = float(largest_of_run)
    return largest, total + sum_of_run * np.exp(largest_of_run - largest)
