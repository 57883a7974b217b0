"""Controller that drafts a tree of constant branching factors for every branch in every round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from decoding.speculation.controllers.template import plan_evenly
from decoding.speculation.draft import MAX_DRAFT_SIZE, TreeTemplate
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from decoding.validation import require_count


@dataclass(frozen=True)
class BranchingController:
    """Implements `Controller`: the shape of RSD-C (arXiv 2402.14160) and of SpecTr's paths (arXiv 2310.15141).

    factors   children of each node, level by level: [2, 2, 1] are 2 + 4 + 4 nodes; [4, 1, 1] are four paths of three

    Raises: ValueError naming the setting.
    """

    factors: tuple[int, ...] = (2, 2, 1, 1)
    template: TreeTemplate = field(init=False, repr=False)
    uses_template: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", tuple(self.factors))
        for depth, factor in enumerate(self.factors):
            require_count(f"factors[{depth}]", factor, at_least=1, at_most=MAX_DRAFT_SIZE)
        nodes = sum(math.prod(self.factors[: depth + 1]) for depth in range(len(self.factors)))
        if not 1 <= nodes <= MAX_DRAFT_SIZE:
            raise ValueError(f"factors must make 1 to {MAX_DRAFT_SIZE} nodes, {list(self.factors)} make {nodes}")
        object.__setattr__(self, "template", TreeTemplate.make_branching(self.factors))

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        return plan_evenly(self.template, len(self.template), branches, load)

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        """Does nothing: the plan is fixed."""
