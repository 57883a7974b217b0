"""Controller of delayed trees: one path first, and several paths below its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from decoding.speculation.controllers.template import plan_evenly
from decoding.speculation.draft import TreeTemplate
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from decoding.validation import require_count

MAX_LENGTH = 64
"""Upper limit of the settings of delayed trees: the largest has 64 + 64 * 16 nodes."""
MAX_PATHS = 16


def make_delayed(trunk: int, paths: int, length: int) -> TreeTemplate:
    """Returns the shape of a path of `trunk` nodes and `paths` paths of `length` nodes below its end."""
    return TreeTemplate.make_branching([1] * trunk + [paths] * min(length, 1) + [1] * (length - 1))


@dataclass(frozen=True)
class DelayedController:
    """Implements `Controller`: static trees (L1, K, L2) of Delayed Tree Expansion (arXiv 2602.16994).

    trunk    nodes of the path before the fork; 0 forks at once
    paths    paths below the fork; with `draw=iid` they are independent, and equal beginnings are one node
    length   nodes of each of these paths
    """

    trunk: int = 3
    paths: int = 3
    length: int = 3
    template: TreeTemplate = field(init=False, repr=False)
    uses_template: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("trunk", self.trunk, at_most=MAX_LENGTH)
        require_count("paths", self.paths, at_least=1, at_most=MAX_PATHS)
        require_count("length", self.length, at_most=MAX_LENGTH)
        object.__setattr__(self, "template", make_delayed(self.trunk, self.paths, self.length))

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        return plan_evenly(self.template, len(self.template), branches, load)

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        """Does nothing: the plan is fixed."""
