"""Joins the uncertainty of generations that follow each other: log-probabilities of likely tokens, and entropies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.core import Generation, Matrix, Vector


def join_uncertainty(parts: Sequence[Generation]) -> tuple[Matrix | None, Vector | None]:
    """Returns `top_logprobs` and `entropies` of generations as of one; None where a part with tokens has none."""
    parts = [part for part in parts if part.tokens]
    tops = [part.top_logprobs for part in parts if part.top_logprobs is not None]
    entropies = [part.entropies for part in parts if part.entropies is not None]
    width = max((rows.shape[1] for rows in tops), default=0)
    padded = [np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=np.nan) for rows in tops]
    return (
        np.concatenate(padded) if parts and len(tops) == len(parts) else None,
        np.concatenate(entropies) if parts and len(entropies) == len(parts) else None,
    )


def make_certain(tokens: Sequence[int]) -> Generation:
    """Returns tokens that no model chose as a generation: log-probability and entropy 0, and no likely tokens.

    >>> make_certain((7, 8)).entropies.tolist(), make_certain((7, 8)).logprobs
    ([0.0, 0.0], (0.0, 0.0))
    """
    return Generation(
        tokens=tuple(tokens),
        logprobs=(0.0,) * len(tokens),
        finish="length",
        top_logprobs=np.full((len(tokens), 1), np.nan, dtype=np.float32),
        entropies=np.zeros(len(tokens), dtype=np.float32),
    )
