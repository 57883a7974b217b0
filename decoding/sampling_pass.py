"""Chooses the token of each row and measures its log-probability on a CPU, in one compiled call. Needs Numba.

Shapes: T rows of logits, R of them, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.logsumexp import sum_exponentials
from decoding.sampler_kernels import draw_tokens

Floats = npt.NDArray[np.float32]


@compiled
def draw_and_measure(
    logits_TV: Floats,
    inverse_temperature_T: Floats,
    keys_T2: npt.NDArray[np.uint32],
    rows_R: npt.NDArray[np.int64],
    tokens_T: npt.NDArray[np.int64],
    logsumexp_T1: Floats,
    logprobs_T: Floats,
) -> None:
    """Writes the tokens of rows `rows_R` as `draw_tokens` does, and the raw log-probability of the token of each row.

    The other rows have their tokens already. Writes also what `sum_exponentials` does.
    """
    draw_tokens(logits_TV, inverse_temperature_T, keys_T2, rows_R, tokens_T)
    sum_exponentials(logits_TV, logsumexp_T1)
    for t in range(len(logits_TV)):
        logprobs_T[t] = logits_TV[t, tokens_T[t]] - logsumexp_T1[t, 0]
