"""Distributes a number of continuations over branches: pure functions of their scores."""

from __future__ import annotations

import math
import statistics
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from decoding.validation import require_choice

Floats: TypeAlias = NDArray[np.float64]

NORMALISATIONS = ("none", "rank", "zscore", "logit")

_LOWEST, _HIGHEST = sys.float_info.min, 1 - 1e-7
"""Scores beyond these count as these in a logit, so that it is finite."""


def validate_normalisation(name: str) -> None:
    """Checks the name of a normalisation. Raises: ValueError naming the valid choices."""
    require_choice("normalise", name, NORMALISATIONS)


def normalise_scores(scores: Sequence[float], how: str) -> list[float]:
    """Returns scores on a scale that does not depend on the reward model's; their order stays.

    none    as they are
    rank    share of the others that are worse, from 0 to 1; equals count half, and one alone is in the middle
    zscore  standard deviations above the mean; 0 where all are equal
    logit   log(score / (1 - score)): a softmax of it at temperature 1 is proportional to the odds

    >>> normalise_scores([1e-9, 1e-27, 0.5, 1e-27], "rank"), normalise_scores([1.0, 3.0], "zscore")
    ([0.6666666666666666, 0.16666666666666666, 1.0, 0.16666666666666666], [-1.0, 1.0])
    """
    validate_normalisation(how)
    if how == "none" or not scores:
        return list(scores)
    if how == "rank":
        ranks: list[float] = rank_scores(np.array(scores, dtype=np.float64)).tolist()
        return ranks
    if how == "logit":
        limited = [min(max(score, _LOWEST), _HIGHEST) for score in scores]
        return [math.log(score) - math.log1p(-score) for score in limited]
    mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
    return [(score - mean) / deviation if deviation else 0.0 for score in scores]


def normalise_among(score: float, how: str, ordered: Sequence[float]) -> float:
    """Returns what `normalise_scores` makes of one of these scores, which are in rising order."""
    if how == "rank":  # the time does not grow with the others
        others = len(ordered) - 1
        places = bisect_left(ordered, score) + bisect_right(ordered, score) - 1
        return places / (2 * others) if others else 0.5
    if how == "zscore":
        deviation = statistics.pstdev(ordered)
        return (score - statistics.fmean(ordered)) / deviation if deviation else 0.0
    return normalise_scores([score], how)[0]  # whatever the others are


def rank_scores(scores_N: Floats) -> Floats:
    """Returns `normalise_scores` by `rank`, of an array."""
    return rank_in_order(scores_N, np.argsort(scores_N))


def rank_in_order(scores_N: Floats, order_N: NDArray[np.intp]) -> Floats:
    """Returns `rank_scores`, given the places of the scores in rising order, equals in any, as they have the same rank.

    Scores that are nan come last in that order; so are their ranks.
    """
    ordered_N = scores_N[order_N]
    num_known = int(ordered_N.searchsorted(math.nan))
    ranks_N = np.full(len(order_N), math.nan)
    if num_known < 2:
        ranks_N[order_N[:num_known]] = 0.5
        return ranks_N
    # of equals: the scores below them, and those that are not above, with themselves
    borders = (ordered_N[1:num_known] != ordered_N[: num_known - 1]).nonzero()[0] + 1
    bounds = np.empty(len(borders) + 2, dtype=np.intp)
    bounds[0], bounds[1:-1], bounds[-1] = 0, borders, num_known
    starts, ends = bounds[:-1], bounds[1:]
    ranks_N[order_N[:num_known]] = ((starts + ends - 1) / (2 * (num_known - 1))).repeat(ends - starts)
    return ranks_N


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
    weights = [1.0 if score == highest else math.exp((score - highest) / temperature) for score in scores]
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
