"""Drafts a long path copied from the text, the spine, with short branches of recycled tokens: Goose (arXiv 2604.02047).

Of N nodes the spine gets N * (base + confidence * (1 - base)). The confidence grows with the number of tokens that
match where the copy begins; the base follows the share of spine tokens that were accepted. The other nodes are
alternatives: a part of them at the root, the rest at the spine's nodes, with weight 1/i at the i-th. Without a match
all nodes are alternatives at the root.

What holds in every round, for every text that the target may write (`tests/decoding/speculation/drafters/test_goose.py`
tests it): the tree contains the first tokens of the copy, as many as the spine's share, and the tree that recycled
tokens alone make of the root's share. So at least as many tokens are accepted as of the better of the two. With a
confidence of 1 the first one is all that prompt lookup alone drafts with N nodes. The published claim, at least as many
as of either source alone, needs the nodes of both; no tree of N nodes contains every two trees of N nodes.

Shapes: B branches, F nodes whose successors are looked up together, K candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from decoding.speculation.draft import MAX_DRAFT_SIZE, Draft, DraftSampling
from decoding.speculation.drafters.calibration import (
    AcceptanceCalibration,
    calibrated_probability,
    calibration_bucket,
    find_outcomes,
)
from decoding.speculation.drafters.draft_walks import limit_drafts
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.drafters.source import TRUST_LEVELS
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback
from decoding.validation import require_choice, require_count, require_share

_EMPTY = Draft()
_BESIDE_SPINE = 1  # trust level of alternatives to a spine token; 0 is that of the other recycled tokens
_SPINE = 2  # lowest trust level of spine tokens
_SPINE_CHANCE = 0.5  # until outcomes are counted
_SPINE_LABEL = int(calibration_bucket(_SPINE, 0, 0.0))  # labels of spine tokens are not below it
_LOWEST_BASE, _HIGHEST_BASE = 0.15, 0.5
_SMOOTHING = 0.1  # weight of the newest spine in the average


@dataclass
class _SpineTree:
    """The draft of one branch while it is built; `depth` is the maximum depth of a node."""

    depth: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    children: dict[tuple[int, int], int] = field(default_factory=dict)
    spine_children: dict[int, int] = field(default_factory=dict)

    def depth_of(self, node: int) -> int:
        return self.depths[node] if node >= 0 else 0

    def add_node(self, parent: int, token: int, chance: float, label: int) -> int:
        """Returns the new child of `parent`, which is accepted with probability `chance` where its parent is."""
        node = self.children[parent, token] = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depth_of(parent) + 1)
        self.chances.append(chance)
        self.probabilities.append(self.probabilities[parent] * chance if parent >= 0 else chance)
        self.labels.append(label)
        return node

    def to_draft(self) -> Draft:
        return Draft(tuple(self.tokens), tuple(self.parents), tuple(self.probabilities), tuple(self.labels))


@dataclass
class _Anchor:
    """A node below which alternatives are drafted: `nodes` are left for them.

    counts_old  whether a node that the tree has already takes one of `nodes`, and gets alternatives as a new one
    """

    tree: _SpineTree
    node: int
    token: int
    nodes: int
    counts_old: bool = False


@dataclass
class GooseDrafter:
    """Implements `Drafter`. The controller limits the number of nodes; their shape is Goose's.

    source       successors of every token, for the alternatives
    draw         must be likely: nothing is drawn
    nodes        nodes of a draft without a match, at most
    more_nodes   further nodes at a confidence of 1
    max_ngram    longest match that is looked for, in tokens
    min_ngram    shortest match that is copied from
    sure_match   matching tokens from which on the confidence is 1
    root_share   share of the alternatives that are at the root

    Raises: ValueError for a source other than a table of successors, and for another `draw`.
    """

    source: TokenRecycling
    draw: DraftSampling = "likely"
    nodes: int = 16
    more_nodes: int = 16
    max_ngram: int = 3
    min_ngram: int = 1
    sure_match: int = 8
    root_share: float = 0.5
    spine_acceptance: float = field(init=False, default=0.3)
    """Moving average of the share of spine tokens that were accepted."""

    def __post_init__(self) -> None:
        require_choice("draw", self.draw, ("likely",))
        for name in ("nodes", "sure_match"):
            require_count(name, getattr(self, name), at_least=1, at_most=MAX_DRAFT_SIZE)
        require_count("more_nodes", self.more_nodes, at_most=MAX_DRAFT_SIZE)
        require_share("root_share", self.root_share)
        if not isinstance(self.source, TokenRecycling):
            raise ValueError(
                f"source must be a TokenRecycling, whose states are tokens; got {type(self.source).__name__}"
            )
        self.lookup = PromptLookup(self.max_ngram, self.min_ngram)
        self.calibration = AcceptanceCalibration()

    @property
    def feedback_k(self) -> int:
        return self.source.feedback_k

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        if not branches or not plan.max_total:
            return [_EMPTY] * len(branches)
        texts = self.lookup.root_states(branches)
        matches = texts[:, 2].tolist()
        confidences = [min(match, self.sure_match) / self.sure_match for match in matches]
        limits = _divide_nodes(plan, [self.nodes + int(sure * self.more_nodes) for sure in confidences])
        copies = self.lookup.copied_texts(texts, max(limits))
        trees = [_SpineTree(max(0, branch.remaining - 1)) for branch in branches]
        shares = [self.spine_nodes(limit, sure) for limit, sure in zip(limits, confidences, strict=True)]
        for tree, copy, share, match in zip(trees, copies, shares, matches, strict=True):
            self._grow_spine(tree, copy[: min(share, tree.depth)], match)
        roots = [
            _Anchor(tree, -1, branch.tokens[-1], self.root_nodes(limit, len(tree.tokens)), counts_old=True)
            for tree, branch, limit in zip(trees, branches, limits, strict=True)
        ]
        spines = [len(tree.tokens) for tree in trees]
        self._grow_branches(roots)
        self._grow_branches(
            [a for tree, spine, n in zip(trees, spines, limits, strict=True) for a in _spine_anchors(tree, spine, n)]
        )
        for tree, copy, limit, match in zip(trees, copies, limits, matches, strict=True):
            # what the table had no tokens for lengthens the spine
            spare = limit - len(tree.tokens)
            if spare and len(tree.spine_children) < len(copy):
                self._grow_spine(tree, copy[: min(len(tree.spine_children) + spare, tree.depth)], match)
        return limit_drafts([tree.to_draft() for tree in trees], plan)

    def spine_nodes(self, nodes: int, confidence: float) -> int:
        """Returns the spine's share of `nodes`."""
        base = min(max(self.spine_acceptance, _LOWEST_BASE), _HIGHEST_BASE)
        return round(nodes * (base + confidence * (1 - base)))

    def recycled_draft(self, token: int, nodes: int, depth: int) -> Draft:
        """Returns the draft of `nodes` nodes after a token that the table of successors makes alone."""
        tree = _SpineTree(depth)
        self._grow_branches([_Anchor(tree, -1, token, nodes, counts_old=True)])
        return tree.to_draft()

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.source.observe(feedback)
        with_draft = [outcome for outcome in feedback if outcome.draft.labels]
        if not with_draft:
            return
        nodes = find_outcomes(with_draft)
        self.calibration.observe(nodes.label_N, nodes.is_accepted_N)
        for outcome in with_draft:
            labels_of = outcome.draft.labels
            if length := sum(label >= _SPINE_LABEL for label in labels_of):
                accepted = sum(labels_of[node] >= _SPINE_LABEL for node in outcome.accepted_nodes)
                self.spine_acceptance += _SMOOTHING * (accepted / length - self.spine_acceptance)

    def root_nodes(self, nodes: int, spine: int) -> int:
        return math.ceil((nodes - spine) * self.root_share) if spine else nodes

    def _grow_spine(self, tree: _SpineTree, copy: Sequence[int], match: int) -> None:
        """Adds the tokens of a copy to the tree as one path; those that the tree has stay. *Mutates*."""
        node = -1
        for place, token in enumerate(copy):
            child = tree.children.get((node, token))
            if child is None:
                trust = min(_SPINE + match + place - 1, TRUST_LEVELS - 1)
                label = calibration_bucket(trust, 0, _SPINE_CHANCE)
                child = tree.add_node(node, token, self._estimate(label, _SPINE_CHANCE), label)
            tree.spine_children[node] = child
            node = child

    def _grow_branches(self, anchors: Sequence[_Anchor]) -> None:
        """Adds alternatives below all anchors, breadth first; every level is looked up at once. *Mutates*.

        A node has as many children as its rank's score asks of the nodes that are left, and at most K over the depth.
        """
        frontier = [(anchor, anchor.node, anchor.token, 1.0) for anchor in anchors]
        for depth in range(1, self.source.k + 1):
            frontier = [
                one for one in frontier if one[0].nodes > 0 and one[0].tree.depth_of(one[1]) < one[0].tree.depth
            ]
            if not frontier:
                break
            ids_FK = self.source.next_tokens(np.array([token for _, _, token, _ in frontier], dtype=np.int64)).ids_FK
            below = []
            for (anchor, node, _, score), candidates in zip(frontier, ids_FK.tolist(), strict=True):
                width = min(self.source.k // depth, math.ceil(anchor.nodes * score))
                below += [(anchor, *child) for child in self._add_children(anchor, node, candidates, width)]
            frontier = below

    def _add_children(
        self, anchor: _Anchor, node: int, candidates: Sequence[int], width: int
    ) -> Iterator[tuple[int, int, float]]:
        """Adds up to `width` children; yields the node, token and score of those that get alternatives. *Mutates*."""
        tree = anchor.tree
        beside = node in tree.spine_children
        chance_left = 1.0 - tree.chances[tree.spine_children[node]] if beside else 1.0
        for rank, token in enumerate(candidates):
            if token < 0 or not width:
                return
            child = tree.children.get((node, token))
            if child is not None and not anchor.counts_old:
                continue  # the spine's own next token, or one from the root's alternatives
            score = 0.5 ** (rank + 1)
            if child is None:
                label = calibration_bucket(_BESIDE_SPINE if beside else 0, rank, chance_left * score)
                child = tree.add_node(node, token, self._estimate(label, chance_left * score), label)
            width, anchor.nodes = width - 1, anchor.nodes - 1
            yield child, token, score

    def _estimate(self, label: int, chance: float) -> float:
        return calibrated_probability(self.calibration.hits, self.calibration.trials, label, chance)


def _divide_nodes(plan: DraftPlan, wanted_nodes: Sequence[int]) -> list[int]:
    """Returns the nodes of each branch, within the plan: of too few for all, each gets an equal share."""
    wanted_nodes = [min(nodes, most) for nodes, most in zip(wanted_nodes, plan.max_nodes, strict=True)]
    limits, remaining = [0] * len(wanted_nodes), plan.max_total
    # the smallest first: what they leave is shared by the others
    for place, b in enumerate(sorted(range(len(wanted_nodes)), key=wanted_nodes.__getitem__)):
        limits[b] = min(wanted_nodes[b], remaining // (len(wanted_nodes) - place))
        remaining -= limits[b]
    return limits


def _spine_anchors(tree: _SpineTree, spine: int, nodes: int) -> list[_Anchor]:
    """Returns an anchor per spine node; the tree's missing nodes are divided with weight 1/i at the i-th."""
    spare = nodes - len(tree.tokens)
    if spare <= 0 or not spine:
        return []
    sums = list(accumulate(1 / i for i in range(1, spine + 1)))
    # rounded sums, so that the parts add up
    ends = [round(spare * part / sums[-1]) for part in sums]
    # the spine's nodes come first in the tree
    return [
        _Anchor(tree, node, tree.tokens[node], end - begin)
        for node, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]
