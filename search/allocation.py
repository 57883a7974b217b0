"""Distributes a number of continuations over branches: pure functions of their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence


def allocate_by_softmax(scores: Sequence[float], width: int, temperature: float) -> list[int]:
    """Distributes `width` continuations in proportion to softmax(score / temperature); the counts add up to `width`.

    REBASE (arXiv 2408.00724). Fractions are rounded by largest remainder, the earlier of equals first: rounding each
    share separately exceeds the budget, and rounding up in turn, as in the published code, leaves none for the last.

    >>> allocate_by_softmax([1.0, 1.0, 0.0], 4, temperature=0.2)
    [2, 2, 0]
    """
    if not scores:
        return []
    highest = max(scores)  # subtracted, so that a low temperature cannot overflow `exp`
    weights = [math.exp((score - highest) / temperature) for score in scores]
    total = math.fsum(weights)
    shares = [width * weight / total for weight in weights]
    widths = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: widths[i] - shares[i])  # stable: ties go to the earlier
    for i in by_remainder[: width - sum(widths)]:
        widths[i] += 1
    return widths


def allocate_to_best(scores: Sequence[float], width: int, num_kept: int) -> list[int]:
    """Distributes `width` continuations evenly over the `num_kept` best branches; a remainder goes to the better ones.

    >>> allocate_to_best([0.1, 0.9, 0.5], 5, num_kept=2)
    [0, 3, 2]
    """
    widths = [0] * len(scores)
    best = rank_by_score(scores)[:num_kept]
    for rank, i in enumerate(best):
        widths[i] = width // len(best) + (rank < width % len(best))
    return widths


def rank_by_score(scores: Sequence[float]) -> list[int]:
    """Indices in order of falling score, the earlier of equals first."""
    return sorted(range(len(scores)), key=lambda i: -scores[i])
