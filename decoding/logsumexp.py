"""Computes the logarithm of each row's sum of exp(logits) on a CPU, in one compiled call. Needs Numba.

The eight operations of PyTorch's do the same, each with machine code that a forward pass has driven from the cache.

Shapes: T rows of logits, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.vector_emitter import LANES
from decoding.vector_kernels import exponentiate

_RUN = 512
"""Logits whose exponentials are added in float32, and their sums in float64."""


@compiled
def sum_exponentials(logits_TV: npt.NDArray[np.float32], logsumexp_T1: npt.NDArray[np.float32]) -> None:
    """Writes log(sum(exp(logits))) of each row, which has the same bits whatever the other rows are."""
    run = np.empty(_RUN + LANES, dtype=np.float32)
    for t in range(len(logits_TV)):
        row = logits_TV[t]
        largest, total = -np.inf, 0.0
        for start in range(0, len(row), _RUN):
            count = min(_RUN, len(row) - start)
            largest_of_run = np.float32(-np.inf)
            for i in range(count):
                run[i] = row[start + i]
                # NaN is no larger than any number, and comes out of the sum
                if run[i] > largest_of_run:
                    largest_of_run = run[i]
            sum_of_run = exponentiate(run, 0, count)
            if largest_of_run == -np.inf and sum_of_run == sum_of_run:
                continue  # all of them are -inf
            if largest_of_run > largest:
                total *= np.exp(largest - largest_of_run)
                largest = float(largest_of_run)
            total += sum_of_run * np.exp(largest_of_run - largest)
        logsumexp_T1[t, 0] = largest + np.log(total)
