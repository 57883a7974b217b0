"""Controller that drafts one path of the same length for every branch in every round, as most engines do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.controllers.template import plan_evenly
from decoding.speculation.draft import MAX_DRAFT_SIZE, TreeTemplate
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from decoding.validation import require_count


@dataclass(frozen=True)
class ChainController:
    """Implements `Controller`: `length` draft tokens in a row."""

    length: int = 5
    uses_template: ClassVar[bool] = True  # a fixed shape is lossless for drafts of any sampling

    def __post_init__(self) -> None:
        require_count("length", self.length, at_most=MAX_DRAFT_SIZE)

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        return plan_evenly(TreeTemplate.make_chain(self.length), self.length, branches, load)

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        """Does nothing: the plan is fixed."""
