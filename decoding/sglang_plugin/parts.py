"""Builds the drafter and the acceptance rule of an SGLang server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.controllers.template import TemplateController
from decoding.speculation.draft import Draft, TreeTemplate
from decoding.speculation.drafters.hybrid import HybridSource
from decoding.speculation.drafters.ngram_table import NGramTable
from decoding.speculation.drafters.source import DraftSource
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import AcceptanceRule, Branch, DraftPlan, reads_hidden

RuleName = Literal["coupled", "recursive_rejection"]


@dataclass(frozen=True)
class SpeculativeParts:
    """A drafter, its acceptance rule, and the most nodes of a draft.

    table      what the drafter has learned
    template   the shape that drafts fill; None: the likeliest nodes, which may be cut to any number

    Raises: ValueError for a drafter that reads hidden states.
    """

    drafter: TreeDrafter
    acceptance: AcceptanceRule
    most_nodes: int
    table: NGramTable
    template: TreeTemplate | None = None

    def __post_init__(self) -> None:
        if reads_hidden(self.drafter):
            raise ValueError(
                f"{type(self.drafter.source).__name__} reads the target's hidden states, and SGLang gives none to a "
                "drafter; use it with engine=local"
            )

    @property
    def may_cut(self) -> bool:
        """Whether the size of a draft may depend on its tokens, and the output stays the model's (DESIGN D2)."""
        return self.template is None

    def draft_trees(self, branches: Sequence[Branch]) -> list[Draft]:
        """Returns a draft for each branch, no deeper than its remaining tokens allow."""
        nodes = self.most_nodes if self.template is None else min(self.most_nodes, len(self.template))
        plan = DraftPlan((nodes,) * len(branches), nodes * len(branches), template=self.template)
        # SGLang commits accepted tokens without a limit, so a draft must leave room for the token after it.
        return [
            draft.truncate_to(nodes=len(draft), depth=max(0, branch.remaining - 1))
            for draft, branch in zip(self.drafter.propose(branches, plan), branches, strict=True)
        ]


def make_parts(nodes: int, rule: RuleName) -> SpeculativeParts:
    """Returns new parts with at most `nodes` draft nodes per branch."""
    source = Stand()
    if rule == "coupled":
        return SpeculativeParts(TreeDrafter(source), Coupled(), nodes, source.table)
    drafter, template = TreeDrafter(source, draw="without_replacement"), TemplateController("stand").template
    return SpeculativeParts(drafter, RecursiveRejection(), nodes, source.table, template)


def make_fused_parts(nodes: int, draft_model: DraftSource, levels: int, agree: float) -> SpeculativeParts:
    """Returns new parts that merge what a draft model proposes with n-grams, for coupled acceptance.

    levels  of a draft that the draft model drafts; below them n-grams go on alone
    agree   minimum probability that the draft model gives to a token of an n-gram on these levels
    """
    source = Stand()
    merged = HybridSource((draft_model, source), first_levels=levels, first_must_agree=agree)
    return SpeculativeParts(TreeDrafter(merged), Coupled(), nodes, source.table)
