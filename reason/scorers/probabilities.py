"""Turn what a head puts out into probabilities. Pure; float64 so that no score leaves [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reason.scorers.base import Floats


def logistic(x: Floats) -> Floats:
    """`1 / (1 + exp(-x))` without overflow.

    >>> logistic(np.array([-1e4, 0.0, 1e4])).tolist()
    [0.0, 0.5, 1.0]
    """
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def scalar_probability(outputs: npt.ArrayLike) -> Floats:
    """`[K]` logistic of one value per step, from `[K, 1]`. Raises: ValueError for another shape."""
    return logistic(_columns(outputs, 1)[:, 0])


def pair_probability(outputs: npt.ArrayLike, *, positive: int) -> Floats:
    """`[K]` softmax share of column `positive`, from two logits per step `[K, 2]`.

    >>> pair_probability([[0.0, 0.0], [np.log(3.0), 0.0]], positive=0).round(3).tolist()
    [0.5, 0.75]

    Raises: ValueError for another shape.
    """
    logits = _columns(outputs, 2)
    return logistic(logits[:, positive] - logits[:, 1 - positive])


def last(pieces: Sequence[Floats]) -> Floats:
    """`[K, outputs]`, the outputs at the last token of each of K pieces."""
    return np.stack([piece[-1] for piece in pieces])


def _columns(outputs: npt.ArrayLike, count: int) -> Floats:
    array = np.asarray(outputs, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != count:
        raise ValueError(f"wanted {count} output(s) per step, got an array of shape {array.shape}")
    return array
