"""Confidence of a model in its own text, from the log-probabilities of its most likely next tokens.

DeepConf (arXiv 2508.15260): a token's confidence is minus the mean log-probability of the k most likely tokens at its
place (section 2); that of a text is a mean over its tokens, or over the least sure of them (section 3.1). Where the
model is sure, all tokens but one have a very low probability, and the mean is far from 0.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from decoding.core import Matrix, Vector

ConfidenceMeasure = Literal["mean", "window", "bottom", "tail"]
MEASURES: tuple[str, ...] = get_args(ConfidenceMeasure)

MAX_CONFIDENCE = 50.0
"""Highest confidence of a token: log-probabilities below -50 count as -50. Servers send such numbers for tokens that
are ruled out, and one of them would hide all others in a mean."""

_Floats = npt.NDArray[np.float64]


def token_confidences(top_logprobs_TK: Matrix) -> Vector:
    """Returns the confidence of each token in [0, `MAX_CONFIDENCE`], float32 `[T]`; NaN at tokens without any value.

    >>> token_confidences(np.array([[-0.5, -2.5], [-0.5, np.nan]], dtype=np.float32)).tolist()
    [1.5, 0.5]
    """
    is_known = ~np.isnan(top_logprobs_TK)
    sums = np.where(is_known, -np.clip(top_logprobs_TK, -MAX_CONFIDENCE, 0), 0).sum(axis=1, dtype=np.float64)
    counts = is_known.sum(axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).astype(np.float32)


def group_confidences(confidences: Vector, window: int) -> _Floats:
    """Returns the mean confidence of each `window` successive tokens, `[G]`; a shorter text is one group.

    Tokens without a confidence (NaN) are left out; without any other there is no group.

    >>> group_confidences(np.array([1, 3, np.nan, 5], dtype=np.float32), 2).tolist()
    [2.0, 4.0]
    """
    known = confidences[~np.isnan(confidences)].astype(np.float64)
    window = min(window, len(known))
    if not window:
        return known
    sums = np.concatenate([[0.0], known.cumsum()])
    means: _Floats = (sums[window:] - sums[:-window]) / window
    return means


def measure_confidence(
    confidences: Vector, measure: ConfidenceMeasure, *, window: int = 2048, bottom: float = 0.1, tail: int = 2048
) -> float | None:
    """Returns the confidence of a text; None where no token has one.

    mean    mean of its tokens
    window  lowest of its groups of `window` successive tokens
    bottom  mean of this share of its groups, the lowest ones, at least one
    tail    mean of its last `tail` tokens

    >>> doubtful_middle = np.array([8, 8, 2, 4, 8, 6], dtype=np.float32)
    >>> [measure_confidence(doubtful_middle, name, window=2, bottom=0.5, tail=2) for name in MEASURES]
    [6.0, 3.0, 4.0, 7.0]
    """
    if measure == "mean":
        values = group_confidences(confidences, max(1, len(confidences)))
    elif measure == "tail":
        values = group_confidences(confidences, tail)[-1:]
    else:
        values = np.sort(group_confidences(confidences, window))
        values = values[: 1 if measure == "window" else max(1, int(bottom * len(values)))]
    return float(values.mean()) if len(values) else None
