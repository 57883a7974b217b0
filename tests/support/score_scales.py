"""What `search.normalise` makes of scores, by its definitions, for searches written again in tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def scale_score(score: float, among: Sequence[float], how: str) -> float:
    """One score on the scale of `how`: none, rank or zscore; `among` has the scores to compare with, this one too."""
    if how == "rank":
        worse, equal, others = sum(s < score for s in among), sum(s == score for s in among) - 1, len(among) - 1
        return (worse + equal / 2) / others if others else 0.5
    if how == "zscore":
        mean = sum(map(Fraction, among)) / len(among)
        variance = sum((Fraction(s) - mean) ** 2 for s in among) / len(among)
        return float(Fraction(score) - mean) / math.sqrt(variance) if variance else 0.0
    return score


def scale_scores(scores: Sequence[float], how: str) -> list[float]:
    """Each score on the scale of `how`, among all of them."""
    return [scale_score(score, scores, how) for score in scores]


def fill_missing(scores: Sequence[float | None]) -> list[float]:
    """Paths without a score count as the worst of the others, so that they are continued last."""
    lowest = min((score for score in scores if score is not None), default=0.0)
    return [lowest if score is None else score for score in scores]
