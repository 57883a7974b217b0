"""Builds drafts by walks that balance exploration and exploitation, as ADED does (arXiv 2407.12021).

Each walk goes from the root down and takes, after every token, the candidate with the largest score; the paths of all
walks are merged into one tree. A candidate's score is its probability P, plus what is left to explore there:

    P * sqrt(N) / (1 + n) * (exploration + log((N + horizon + 1) / horizon))

with the N walks that came to the parent and the n of them that went on to the candidate. The first walk is the greedy
path; the more walks have gone there, the more the others count. The walks need no random numbers, so the tree is a
function of the text and of what was learned: drafts are as those of `likely` tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from decoding.speculation.draft import MAX_DRAFT_SIZE, Draft, DraftSampling
from decoding.speculation.drafters.source import DraftSource, NextTokens
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback, is_trained, reads_hidden
from decoding.validation import MAX_VALUE, require_choice, require_count, require_not_negative, require_positive

_EMPTY = Draft()


@dataclass
class _WalkTree:
    """The tree of one branch while it is built: for each node its token, parent, path probability and walks."""

    most: int
    depth: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    walks: list[int] = field(default_factory=list)
    children: dict[tuple[int, int], int] = field(default_factory=dict)
    root_walks: int = 0

    def count_walks(self, node: int) -> int:
        return self.root_walks if node < 0 else self.walks[node]

    def walk_to(self, parent: int, token: int, probability: float) -> int:
        """Returns the child of `parent` with this token, which is added if the tree has none. *Mutates*."""
        child = self.children.setdefault((parent, token), len(self.tokens))
        if child == len(self.tokens):
            above = 1.0 if parent < 0 else self.probabilities[parent]
            self.tokens.append(token)
            self.parents.append(parent)
            self.probabilities.append(above * min(probability, 1.0))  # rounding must not lift it above its parent
            self.walks.append(0)
        return child

    def finish_walk(self, node: int) -> None:
        """Counts a walk that ended in `node`. *Mutates*."""
        self.root_walks += 1
        while node >= 0:
            self.walks[node] += 1
            node = self.parents[node]


@dataclass
class WalkDrafter:
    """Implements `Drafter`. The controller gives the number of nodes; their shape is that of the walks.

    source       proposes the candidates for every next token
    draw         must be likely: the walks draw nothing
    walks        maximum walks per draft
    length       maximum tokens of a walk
    exploration  weight of what is left to explore; 0 is the greedy path alone
    horizon      number of walks from which exploration gains more weight

    Raises: ValueError for a source that only ranks, and for another `draw`.
    """

    source: DraftSource
    draw: DraftSampling = "likely"
    walks: int = 16
    length: int = 8
    exploration: float = 1.25
    horizon: float = 19652.0

    def __post_init__(self) -> None:
        require_choice("draw", self.draw, ("likely",))
        require_count("walks", self.walks, at_least=1, at_most=MAX_DRAFT_SIZE)
        require_count("length", self.length, at_least=1, at_most=MAX_DRAFT_SIZE)
        require_not_negative("exploration", self.exploration)
        require_positive("horizon", self.horizon, at_most=MAX_VALUE)
        if not self.source.has_probabilities:
            raise ValueError(f"{type(self.source).__name__} only ranks its candidates, and walks need probabilities")

    @property
    def feedback_k(self) -> int:
        return self.source.feedback_k

    @property
    def reads_hidden(self) -> bool:
        return reads_hidden(self.source)

    @property
    def is_trained(self) -> bool:
        return is_trained(self.source)

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        if not branches or not plan.max_total:
            return [_EMPTY] * len(branches)
        trees = [
            _WalkTree(min(most, plan.max_total), min(self.length, branch.remaining - 1))
            for most, branch in zip(plan.max_nodes, branches, strict=True)
        ]
        roots = self.source.root_states(branches)
        for _ in range(self.walks):
            rows = np.array([b for b, tree in enumerate(trees) if len(tree.tokens) < tree.most and tree.depth > 0], int)
            if not len(rows):
                break
            nodes = dict.fromkeys(rows.tolist(), -1)
            state = roots[rows]
            for depth in range(self.length):
                steps = self._take_steps(trees, nodes, rows, self.source.next_tokens(state), depth)
                if not steps:
                    break
                chosen = np.array([row for row, _ in steps], dtype=np.int64)
                state = self.source.advance(state[chosen], np.array([token for _, token in steps], dtype=np.int64))
                rows = rows[chosen]
            for b, node in nodes.items():
                trees[b].finish_walk(node)
        drafts = [Draft(tuple(tree.tokens), tuple(tree.parents), tuple(tree.probabilities)) for tree in trees]
        return limit_drafts(drafts, plan)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.source.observe(feedback)

    def _take_steps(
        self, trees: Sequence[_WalkTree], nodes: dict[int, int], rows: np.ndarray, candidates: NextTokens, depth: int
    ) -> list[tuple[int, int]]:
        """Moves each walk on by one token; returns its row among `rows` and the token. *Mutates* trees and `nodes`."""
        steps = []
        probabilities_FK = np.exp(candidates.logp_FK).tolist()
        for row, (b, ids) in enumerate(zip(rows.tolist(), candidates.ids_FK.tolist(), strict=True)):
            tree, node = trees[b], nodes[b]
            if depth >= tree.depth:
                continue
            best, token, chance = -1.0, -1, 0.0
            explored = tree.count_walks(node)
            weight = math.sqrt(explored) * (
                self.exploration + math.log((explored + self.horizon + 1) / self.horizon) * (self.exploration > 0)
            )
            for candidate, p in zip(ids, probabilities_FK[row], strict=True):
                child = tree.children.get((node, candidate), -1)
                if candidate < 0 or (child < 0 and len(tree.tokens) >= tree.most):
                    continue
                score = p + p * weight / (1 + (tree.walks[child] if child >= 0 else 0))
                if score > best:  # strict: of equals the more probable
                    best, token, chance = score, candidate, p
            if token >= 0:
                nodes[b] = tree.walk_to(node, token, chance)
                steps.append((row, token))
        return steps


def limit_drafts(drafts: Sequence[Draft], plan: DraftPlan) -> list[Draft]:
    """Returns the drafts within the plan: of more nodes than it has room for, the likeliest of the batch.

    A child is no likelier than its parent, and later in the order where it is as likely: so its parent is there.
    """
    order = sorted(
        ((-p, b, node) for b, draft in enumerate(drafts) for node, p in enumerate(draft.path_probabilities)),
        key=lambda one: one[0],
    )
    if plan.least_probabilities:
        order = [one for one in order if -one[0] >= plan.least_probabilities[one[1]]]
    order = order[: plan.max_total]
    if plan.cost_estimate is not None:
        chances = -np.array([one[0] for one in order], dtype=np.float64)
        order = order[: plan.cost_estimate.count_worthwhile(chances, len(drafts))]
    kept_nodes: list[list[int]] = [[] for _ in drafts]
    for _, b, node in order:
        kept_nodes[b].append(node)
    return [
        draft.select_nodes(sorted(nodes)) if nodes else _EMPTY for draft, nodes in zip(drafts, kept_nodes, strict=True)
    ]
