"""Draws tokens by Gumbel noise on a CPU: the noise is computed only where it can decide.

The token is `argmax(s + g)` over scaled logits s. The hash of an id bounds its noise g from above with a few operations
on integers; the two logarithms of the noise are computed only for ids whose bound exceeds the best sum so far, about
fifteen of 152,000. No array of the size of the vocabulary is written.

Shapes: T rows of logits, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.noise import gumbel_of_hash, hash_token

_RUN = 512
"""Ids whose bounds are computed together, in the processor's cache."""
_LN_2 = np.float32(np.log(2.0))
_BITS_OF_1 = np.float32(127.001)
"""Exponent of 1.0 in a float32, and what the rounding of a bound may lose."""


@compiled
def draw_tokens(
    logits_TV: npt.NDArray[np.float32],
    inverse_temperature_T: npt.NDArray[np.float32],
    keys_T2: npt.NDArray[np.uint32],
    rows_R: npt.NDArray[np.int64],
    tokens_T: npt.NDArray[np.int64],
) -> None:
    """Writes the token of each row of `rows_R` to `tokens_T`.

    A row with inverse temperature 0 gets its most likely token. Of equal sums the first wins, as of an argmax.
    """
    bounds, hashes = np.empty(_RUN, dtype=np.float32), np.empty(_RUN, dtype=np.uint32)
    for t in rows_R:
        row, inverse = logits_TV[t], inverse_temperature_T[t]
        best, token = np.float32(-np.inf), 0
        for start in range(0, len(row), _RUN):
            count = min(_RUN, len(row) - start)
            if inverse == 0:
                for i in range(start, start + count):
                    if row[i] > best:
                        best, token = row[i], i
                continue
            if _bound_sums(row, start, count, inverse, keys_T2[t], bounds, hashes) <= best:
                continue
            for i in range(count):
                # rounding keeps the order: where the bound of a sum is not above the best one, the sum is not either
                if bounds[i] > best:
                    total = np.float32(row[start + i] * inverse) + np.float32(gumbel_of_hash(hashes[i]))
                    if total > best:
                        best, token = total, start + i
        tokens_T[t] = token


@compiled
def _bound_sums(
    row: npt.NDArray[np.float32],
    start: int,
    count: int,
    inverse: np.float32,
    key_2: npt.NDArray[np.uint32],
    bounds: npt.NDArray[np.float32],
    hashes: npt.NDArray[np.uint32],
) -> np.float32:
    """Writes hashes and upper bounds of s + g for `count` ids from `start` on; returns the largest bound.

    With u = hash / 2^32 the noise is at most -ln u. The bits of a float32, read as an integer and divided by 2^23, are
    exponent + mantissa - 1, at most the exponent's offset + log2. So one subtraction bounds the logarithm.
    """
    first, second = np.uint32(key_2[0]), np.uint32(key_2[1])
    for i in range(count):
        hashed = hash_token(np.uint32(start + i), first, second)
        hashes[i] = hashed
        bounds[i] = np.float32(hashed)
    bits = bounds.view(np.int32)
    for i in range(count):
        log_2 = np.float32(bits[i]) * np.float32(2.0**-23)
        bounds[i] = np.float32(row[start + i] * inverse) + (np.float32(32) + _BITS_OF_1 - log_2) * _LN_2
    largest = np.float32(-np.inf)
    for i in range(count):
        largest = max(largest, bounds[i])
    return largest
