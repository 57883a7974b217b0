"""Log-probabilities of the most likely tokens, as servers send them: lists of numbers, one list a token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.core import Matrix, Vector

BYTES_PER_VALUE = 48
"""Longest text of one of them in a reply: `["-12.345678901234567", 123456, null]`, or a token's text and the number."""


def stack_rows(rows: Sequence[Sequence[float]], num_top: int) -> tuple[Matrix, Vector]:
    """Returns the rows as `Generation.top_logprobs`, and as `entropies` the part of these tokens.

    A server may send more (the chosen token, where it is no likely one) or fewer: the rest of such a row is NaN.

    >>> top, entropies = stack_rows([(-3.0, -0.5, -1.5), (0.0,)], 2)
    >>> top.tolist(), [f"{entropy:.2f}" for entropy in entropies]
    ([[-0.5, -1.5], [0.0, nan]], ['0.64', '0.00'])
    """
    top = np.full((len(rows), num_top), np.nan, dtype=np.float32)
    for i, row in enumerate(rows):
        best = sorted(row, reverse=True)[:num_top]
        top[i, : len(best)] = best
    terms = np.exp(top) * np.abs(top)
    return top, np.nansum(terms, axis=1, dtype=np.float32)
