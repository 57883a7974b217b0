"""The upper limit of drafting: a drafter that knows the output of every branch, at no cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from decoding.core import Tokens
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback

_NODE_PROBABILITY = 0.995  # below 1, because a controller expects path probabilities to fall with depth


@dataclass(frozen=True)
class OracleDrafter:
    """Implements `Drafter` with the true continuation of each branch, to the depth of real drafters and while it pays.

    `texts` are whole branches, prompt included, by group and seed: outputs of plain decoding with the same seeds.
    """

    texts: Mapping[tuple[str, int], Tokens]
    depth: int = 20
    feedback_k: int = 0
    is_trained: bool = True

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        drafts = [self._draft(branch, nodes) for branch, nodes in zip(branches, plan.max_nodes, strict=True)]
        probabilities = np.sort([p for draft in drafts for p in draft.path_probabilities])[::-1]
        num_nodes = (
            plan.max_total
            if plan.cost_estimate is None
            else min(plan.max_total, plan.cost_estimate.count_worthwhile(probabilities, len(branches)))
        )
        lengths = split_by_depth([len(draft) for draft in drafts], num_nodes)
        return [draft.truncate_to(nodes=nodes, depth=self.depth) for draft, nodes in zip(drafts, lengths, strict=True)]

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Does nothing: the oracle does not learn."""

    def _draft(self, branch: Branch, nodes: int) -> Draft:
        start = len(branch.tokens)
        text = self.texts.get((branch.group, branch.seed), ())
        if text[:start] != branch.tokens[:]:  # numerical noise changed this branch; the run counts it as differing
            return Draft()
        tokens = text[start : start + min(nodes, self.depth, branch.remaining - 1)]
        return Draft(
            tokens, tuple(range(-1, len(tokens) - 1)), tuple(_NODE_PROBABILITY**i for i in range(1, len(tokens) + 1))
        )


def split_by_depth(lengths: Sequence[int], num_nodes: int) -> list[int]:
    """Returns the length to keep of each chain: `num_nodes` nodes in all, those of low depth first.

    >>> split_by_depth([3, 0, 2], 4)
    [2, 0, 2]
    """
    counts = [0] * len(lengths)
    for depth in range(max(lengths, default=0)):
        deeper = [i for i, length in enumerate(lengths) if length > depth][:num_nodes]
        for i in deeper:
            counts[i] += 1
        num_nodes -= len(deeper)
    return counts
