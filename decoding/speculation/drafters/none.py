"""Guess nothing: plain decoding, and the baseline every drafter must equal in output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.speculation.interfaces import Branch, Draft, Feedback, Plan

_EMPTY = Draft()


@dataclass(frozen=True)
class NoDraft:
    """The empty draft for everybody."""

    feedback_k: int = 0

    def propose(self, branches: Sequence[Branch], plan: Plan) -> list[Draft]:
        return [_EMPTY] * len(branches)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Nothing to learn."""
