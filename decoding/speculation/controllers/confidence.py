"""Controller that drafts while the drafter is confident, as LLMCad does (arXiv 2309.04255, fallback to the target).

A node is drafted while the probability of its path is at least the branch's trigger. Where the target accepted the
draft down to its end, the trigger loosens and later drafts are longer; where it refused a token, the trigger tightens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from decoding.speculation.controllers.branch_memory import forget_oldest, store_latest
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from decoding.validation import require_count, require_share


@dataclass
class ConfidenceController:
    """Implements `Controller`.

    longest         maximum draft nodes per branch, on average
    first           trigger of a new branch
    lowest, highest bounds of the trigger
    step            factor by which the trigger loosens; it tightens by its inverse
    """

    longest: int = 16
    first: float = 0.3
    lowest: float = 0.01
    highest: float = 0.9
    step: float = 0.5
    triggers: dict[int, float] = field(init=False, default_factory=dict, repr=False)
    uses_template: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_count("longest", self.longest)
        for name in ("lowest", "highest", "first", "step"):
            require_share(name, getattr(self, name), above_zero=True, below_one=True)
        if not self.lowest <= self.first <= self.highest:
            raise ValueError(f"first must be from lowest={self.lowest} to highest={self.highest}, got {self.first}")

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        total = min(self.longest * len(branches), load.spare_tokens)
        triggers = tuple(self.triggers.get(branch.request_id, self.first) for branch in branches)
        return DraftPlan((total,) * len(branches), total, least_probabilities=triggers)

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        for outcome in feedback:
            trigger = self.triggers.get(outcome.branch.request_id, self.first)
            trigger *= self.step if _is_accepted_whole(outcome.draft, outcome.accepted_nodes) else 1 / self.step
            store_latest(self.triggers, outcome.branch.request_id, min(max(trigger, self.lowest), self.highest))
        forget_oldest(self.triggers)


def _is_accepted_whole(draft: Draft, accepted_nodes: Sequence[int]) -> bool:
    """Returns whether nothing was drafted after the last accepted token, so that no token was refused."""
    return (accepted_nodes[-1] if accepted_nodes else -1) not in draft.parents
