"""What guesses and what judges inside a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.controllers.template import FromTemplate
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, Draft, Drafter, Load, Plan
from decoding.speculation.target_logits import Acceptance

Rule = Literal["coupled", "recursive_rejection"]


@dataclass(frozen=True)
class Parts:
    """A drafter, the rule it draws for, and how many nodes it may draw for so many branches."""

    drafter: Drafter
    acceptance: Acceptance
    plan: Callable[[Sequence[Branch]], Plan]

    def draft(self, branches: Sequence[Branch]) -> list[Draft]:
        """A draft for each branch, no deeper than what the branch may still write."""
        drafts = self.drafter.propose(branches, self.plan(branches))
        return [
            draft.within(nodes=len(draft), depth=max(0, branch.remaining - 1))
            for draft, branch in zip(drafts, branches, strict=True)
        ]


def parts(nodes: int, rule: Rule) -> Parts:
    """`nodes` is what each branch may have."""
    if rule == "coupled":
        drafter = TreeDrafter(Stand())
        return Parts(drafter, Coupled(), lambda branches: Plan((nodes,) * len(branches), nodes * len(branches)))
    drafter, shape = TreeDrafter(Stand(), draw="without_replacement"), FromTemplate("stand", nodes)
    return Parts(
        drafter,
        RecursiveRejection(),
        lambda branches: shape.plan(branches, Load(len(branches), 0, 0, nodes * len(branches))),
    )
