"""Controller that takes the same number of draft nodes in every round, where acceptance is most likely in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from decoding.validation import require_count


@dataclass(frozen=True)
class FixedController:
    """Implements `Controller`: `nodes` per branch on average; 0 is plain decoding."""

    nodes: int = 0
    uses_template: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_count("nodes", self.nodes)

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        total = min(self.nodes * len(branches), load.spare_tokens)
        # The limit of each branch is that of the batch: one branch may get all nodes.
        return DraftPlan((total,) * len(branches), total)

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        """Does nothing: the plan is fixed."""
