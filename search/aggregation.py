"""Fold the scores of a path's steps into one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from decoding.validation import require_choice

AGGREGATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda scores: scores[-1],
    "min": min,
    "prod": math.prod,
    "mean": lambda scores: math.fsum(scores) / len(scores),
}


def check_aggregation(name: str) -> None:
    """Raises ValueError naming the valid choices when `name` is none of them."""
    require_choice("agg_strategy", name, tuple(AGGREGATIONS))


def aggregate(scores: Sequence[float], how: str) -> float:
    """One number for the step scores of a path; `how` is `last`, `min`, `prod` or `mean`.

    >>> aggregate([0.5, 0.8], "prod")
    0.4

    Raises: ValueError for no scores or an unknown `how`.
    """
    check_aggregation(how)
    if not scores:
        raise ValueError("cannot aggregate the scores of a path without steps")
    return AGGREGATIONS[how](scores)
