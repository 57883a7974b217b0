"""Builds the drafter and the acceptance rule of an SGLang server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.controllers.template import TemplateController
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import AcceptanceRule, BatchLoad, Branch, Drafter, DraftPlan

RuleName = Literal["coupled", "recursive_rejection"]


@dataclass(frozen=True)
class SpeculativeParts:
    """A drafter, its acceptance rule, and the function that plans the drafts of a round."""

    drafter: Drafter
    acceptance: AcceptanceRule
    plan: Callable[[Sequence[Branch]], DraftPlan]

    def draft_trees(self, branches: Sequence[Branch]) -> list[Draft]:
        """Returns a draft for each branch, no deeper than its remaining tokens allow."""
        # SGLang commits accepted tokens without a limit, so a draft must leave room for the token after it.
        drafts = self.drafter.propose(branches, self.plan(branches))
        return [
            draft.truncate_to(nodes=len(draft), depth=max(0, branch.remaining - 1))
            for draft, branch in zip(drafts, branches, strict=True)
        ]


def make_parts(nodes: int, rule: RuleName) -> SpeculativeParts:
    """Returns new parts with at most `nodes` draft nodes per branch."""
    if rule == "coupled":
        drafter = TreeDrafter(Stand())
        return SpeculativeParts(
            drafter, Coupled(), lambda branches: DraftPlan((nodes,) * len(branches), nodes * len(branches))
        )
    drafter, shape = TreeDrafter(Stand(), draw="without_replacement"), TemplateController("stand", nodes)
    return SpeculativeParts(
        drafter,
        RecursiveRejection(),
        lambda branches: shape.plan_drafts(branches, BatchLoad(len(branches), 0, 0, nodes * len(branches))),
    )
