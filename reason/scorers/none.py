"""Score nothing: strategies that need no scores then run without a second model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decoding.core import Tokens
from search.strategy import StepScorer


@dataclass(frozen=True)
class NoScorer:
    """The null scorer: `bind` gives None, and the strategy is told that there is no scorer."""

    def check(self) -> None:
        """Nothing can be wrong."""

    def load(self, writer: Any = None) -> None:
        """Nothing to load."""
        del writer

    def close(self) -> None:
        """Nothing to give back."""

    def bind(self, question: str, prompt: Tokens) -> StepScorer | None:
        """None, whatever the problem."""
        del question, prompt
        return None
