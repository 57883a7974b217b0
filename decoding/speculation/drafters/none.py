"""Drafts nothing: plain decoding, the baseline whose output every drafter must reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback

_EMPTY = Draft()


@dataclass(frozen=True)
class NoDraft:
    """Implements `Drafter`: the empty draft for every branch."""

    feedback_k: int = 0

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        return [_EMPTY] * len(branches)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Does nothing."""
