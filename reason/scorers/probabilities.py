"""Turns outputs of a head into probabilities. Pure; float64, so that no score leaves [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reason.scorers.base import Floats


def stable_sigmoid(x: Floats) -> Floats:
    """Returns `1 / (1 + exp(-x))` without overflow.

    >>> stable_sigmoid(np.array([-1e4, 0.0, 1e4])).tolist()
    [0.0, 0.5, 1.0]
    """
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def scalar_probability(outputs: npt.ArrayLike) -> Floats:
    """Returns `[K]`, the logistic of one value per step, from `[K, 1]`. Raises: ValueError for another shape."""
    return stable_sigmoid(_require_columns(outputs, 1)[:, 0])


def pair_probability(outputs: npt.ArrayLike, *, positive: int) -> Floats:
    """Returns `[K]`, the softmax share of column `positive`, from two logits per step `[K, 2]`.

    >>> pair_probability([[0.0, 0.0], [np.log(3.0), 0.0]], positive=0).round(3).tolist()
    [0.5, 0.75]

    Raises: ValueError for another shape.
    """
    logits = _require_columns(outputs, 2)
    return stable_sigmoid(logits[:, positive] - logits[:, 1 - positive])


def last_outputs(pieces: Sequence[Floats]) -> Floats:
    """Returns `[K, num_outputs]`, the outputs at the last token of each of K pieces."""
    return np.stack([piece[-1] for piece in pieces])


def score_value(pieces: Sequence[Floats]) -> Floats:
    """Scores each step by the logistic of the value at its last token."""
    return scalar_probability(last_outputs(pieces))


def score_first_class(pieces: Sequence[Floats]) -> Floats:
    """Scores each step by the share of column 0 at its last token: "right", where there are two label tokens."""
    return pair_probability(last_outputs(pieces), positive=0)


def score_second_class(pieces: Sequence[Floats]) -> Floats:
    """Scores each step by the share of class 1 at its last token: "right", where there are two classes."""
    return pair_probability(last_outputs(pieces), positive=1)


def score_every_token(pieces: Sequence[Floats]) -> Floats:
    """Scores each step by the product of the shares of class 1 over all tokens up to its end.

    >>> score_every_token([np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([[0.0, np.log(3.0)]])]).round(4).tolist()
    [0.25, 0.1875]
    """
    return np.cumprod([pair_probability(piece, positive=1).prod() for piece in pieces])


def score_least_expected(pieces: Sequence[Floats]) -> Floats:
    """Scores each step by the smallest p(token) / max p of its tokens, from their logarithms `[T, 1]`.

    >>> score_least_expected([np.log([[1.0], [0.25]]), np.log([[0.5]])]).round(2).tolist()
    [0.25, 0.5]
    """
    return np.exp([piece.min() for piece in pieces])


def _require_columns(outputs: npt.ArrayLike, count: int) -> Floats:
    array = np.asarray(outputs, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != count:
        raise ValueError(f"expected {count} output(s) per step, got an array of shape {array.shape}")
    return array
