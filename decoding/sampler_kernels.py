"""Draws tokens by Gumbel noise on a CPU: the noise is computed only where it can decide. Needs Numba.

The token is `argmax(s + g)` over scaled logits s. The hash of an id bounds its noise g from above with a few operations
on integers; the two logarithms of the noise are computed only for ids whose bound exceeds the best sum so far, about
fifteen of 152,000. No array of the size of the vocabulary is written.

Shapes: T rows of logits, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled, compiled_in_place
from decoding.noise import gumbel_of_hash
from decoding.sampling_vectors import bound_sums, copy_run
from decoding.vector_emitter import LANES

RUN = 512
"""Logits that are read together: a run of them stays in the processor's nearest cache."""

Floats = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint32]


@compiled
def draw_tokens(
    logits_TV: Floats, inverse_temperature_T: Floats, keys_T2: Hashes, rows_R: npt.NDArray[np.int64],
    tokens_T: npt.NDArray[np.int64],
) -> None:  # fmt: skip
    """Writes the token of each row of `rows_R` to `tokens_T`.

    A row with inverse temperature 0 gets its most likely token. Of equal sums the first wins, as of an argmax.
    """
    run, bounds, hashes = new_runs()
    for t in rows_R:
        row, inverse = logits_TV[t], inverse_temperature_T[t]
        best, token = np.float32(-np.inf), 0
        for start in range(0, len(row), RUN):
            count = min(RUN, len(row) - start)
            largest = copy_run(row, start, count, run)
            best, token = draw_from_run(
                run, start, count, largest, inverse, keys_T2[t, 0], keys_T2[t, 1], bounds, hashes, best, token
            )
        tokens_T[t] = token


@compiled
def new_runs() -> tuple[Floats, Floats, Hashes]:
    """Returns memory for a run of logits, for its bounds and for its hashes; whole vectors write beyond its end."""
    size = RUN + LANES
    return np.empty(size, dtype=np.float32), np.empty(size, dtype=np.float32), np.empty(size, dtype=np.uint32)


@compiled_in_place
def draw_from_run(
    run: Floats, start: int, count: int, largest: np.float32, inverse: np.float32, first: np.uint32, second: np.uint32,
    bounds: Floats, hashes: Hashes, best: np.float32, token: int,
) -> tuple[np.float32, int]:  # fmt: skip
    """Returns the best sum so far and its id, once the `count` ids from `start` on are known; `best`, `token` before.

    *Mutates* `bounds` and `hashes`.
    """
    if inverse == 0:
        if largest > best:
            for i in range(count):
                if run[i] > best:
                    best, token = run[i], start + i
        return best, token
    if bound_sums(run, start, count, inverse, first, second, bounds, hashes) > best:
        for i in range(count):
            # rounding keeps the order: where the bound of a sum is not above the best one, the sum is not either
            if bounds[i] > best:
                total = np.float32(run[i] * inverse) + np.float32(gumbel_of_hash(hashes[i]))
                if total > best:
                    best, token = total, start + i
    return best, token
