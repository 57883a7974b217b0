"""The scorer that gives no scores: strategies that need none run without a second model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.core import Tokens
from reason.scorers.base import StatelessScorer


@dataclass(frozen=True)
class NoScorer(StatelessScorer):
    """`bind` returns None: the search runs without a scorer."""

    gives_scores: ClassVar[bool] = False

    def bind(self, question: str, prompt: Tokens) -> None:
        """Returns None for every problem."""
