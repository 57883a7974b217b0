"""The limit of drafting: a drafter that knows what every branch will say, at no cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from decoding.core import Tokens
from decoding.speculation.interfaces import Branch, Draft, Feedback, Plan

_SURE = 0.995  # what a trained drafter claims at most; a controller wants to see it fall with depth


@dataclass(frozen=True)
class Oracle:
    """Implements `Drafter`: the true continuation of each branch, as deep as real drafters go and as far as it pays.

    `texts` are whole branches, prompt included, by group and seed: outputs of plain decoding with the same seeds.
    """

    texts: Mapping[tuple[str, int], Tokens]
    depth: int = 20
    feedback_k: int = 0

    def propose(self, branches: Sequence[Branch], plan: Plan) -> list[Draft]:
        drafts = [self._draft(branch, nodes) for branch, nodes in zip(branches, plan.nodes, strict=True)]
        reach = sorted((reach for draft in drafts for reach in draft.reach), reverse=True)
        most = plan.total if plan.price is None else min(plan.total, plan.price.worth(reach, len(branches)))
        kept = level_by_level([len(draft) for draft in drafts], most)
        return [draft.within(nodes=nodes, depth=self.depth) for draft, nodes in zip(drafts, kept, strict=True)]

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Nothing to learn."""

    def _draft(self, branch: Branch, nodes: int) -> Draft:
        at = len(branch.tokens)
        text = self.texts.get((branch.group, branch.seed), ())
        if text[:at] != branch.tokens:  # rounding made this branch another one; the run counts it as a mismatch
            return Draft()
        tokens = text[at : at + min(nodes, self.depth, branch.remaining - 1)]
        return Draft(tokens, tuple(range(-1, len(tokens) - 1)), tuple(_SURE**i for i in range(1, len(tokens) + 1)))


def level_by_level(lengths: Sequence[int], most: int) -> list[int]:
    """How much of each chain to take, the nodes near the anchors first, `most` in all.

    >>> level_by_level([3, 0, 2], 4)
    [2, 0, 2]
    """
    kept = [0] * len(lengths)
    for depth in range(max(lengths, default=0)):
        deeper = [i for i, length in enumerate(lengths) if length > depth][:most]
        for i in deeper:
            kept[i] += 1
        most -= len(deeper)
    return kept
