"""Says whether an answer is likely enough to be right to be acted on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TrustRule:
    """Trusts an answer whose score, or share of the votes, is at least `least`; None: says nothing of any answer.

    by_score   scores are a reward model's probabilities that a solution is right; others say nothing about that, and
               then the share of the votes decides

    >>> rule = TrustRule(0.5, by_score=True)
    >>> rule.judge("7", 0.9, {"7": 0.9, "8": 0.4}), rule.judge("7", 0.1, {"7": 0.1}), rule.judge(None, None, {})
    (True, False, False)
    >>> TrustRule(0.5).judge("7", None, {"7": 2.0, "8": 3.0})
    False
    """

    least: float | None = None
    by_score: bool = False

    def judge(self, answer: str | None, score: float | None, votes: Mapping[str, float]) -> bool | None:
        """Returns whether the answer is trusted; None where nothing tells."""
        if self.least is None:
            return None
        if answer is None:
            return False
        if self.by_score:
            return None if score is None else score >= self.least
        total = math.fsum(votes.values())
        if total <= 0 or min(votes.values()) < 0:  # logarithms, of which there is no share
            return None
        return votes.get(answer, 0.0) >= self.least * total
