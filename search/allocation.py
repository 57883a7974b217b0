"""How many continuations each open branch gets: pure functions over scores."""

from __future__ import annotations

import math
from collections.abc import Sequence


def softmax_widths(scores: Sequence[float], width: int, temperature: float) -> list[int]:
    """`width` continuations in proportion to softmax(score / temperature); they add up to `width`.

    REBASE (arXiv 2408.00724). Fractions are dealt with by largest remainder, the earlier of equals first: rounding each
    share by itself breaks the budget, and rounding up in turn, as in the published code, starves the tail.

    >>> softmax_widths([1.0, 1.0, 0.0], 4, temperature=0.2)
    [2, 2, 0]
    """
    if not scores:
        return []
    top = max(scores)
    weights = [math.exp((score - top) / temperature) for score in scores]
    shares = [width * weight / math.fsum(weights) for weight in weights]
    widths = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: widths[i] - shares[i])
    for i in by_remainder[: width - sum(widths)]:
        widths[i] += 1
    return widths


def best_widths(scores: Sequence[float], width: int, keep: int) -> list[int]:
    """`width` continuations for the `keep` best, as evenly as can be, the better ones first.

    >>> best_widths([0.1, 0.9, 0.5], 5, keep=2)
    [0, 3, 2]
    """
    widths = [0] * len(scores)
    kept = best_first(scores)[:keep]
    for place, i in enumerate(kept):
        widths[i] = width // len(kept) + (place < width % len(kept))
    return widths


def best_first(scores: Sequence[float]) -> list[int]:
    """Indices, the best score first, the earlier of equals first."""
    return sorted(range(len(scores)), key=lambda i: -scores[i])
