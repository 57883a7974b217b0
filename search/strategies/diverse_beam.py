"""Diverse beam search over steps: beams in groups, which are kept from choosing similar steps (arXiv 1610.02424)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from statistics import fmean

from decoding.core import Tokens
from decoding.validation import require_count, require_not_negative
from search.allocation import allocate_to_best, normalise_scores
from search.level_search import Allocation, Frontier, LevelSearch
from search.tree import SearchTree
from search.voting import fill_unscored


@dataclass(frozen=True, kw_only=True)
class DiverseBeam(LevelSearch):
    """Beam search in `num_groups` groups, which choose one after the other at every level.

    From the score of a branch `diversity` times its similarity is subtracted: for each group that chose before at this
    level, the mean similarity of the branch's last step and the steps that this group chose. Similar are steps that
    share many of their n-grams of tokens. Each group continues its best branches `beam_width` times each; a branch that
    ends narrows its group unless `keep_width`. With `diversity=0` and `n / num_groups == beam_width` it is DVTS.

    beam_width  continuations of each branch that is kept
    num_groups  groups of branches, at most n; the first steps are divided among them
    diversity   strength of the penalty, lambda in the paper, where 0.2 to 0.8 did well; 0 is off
    ngram       tokens of an n-gram; 1 compares sets of tokens
    """

    beam_width: int = 4
    num_groups: int = 4
    diversity: float = 0.2
    ngram: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beam_width", "num_groups"):
            require_count(name, getattr(self, name), at_least=1)
            if getattr(self, name) > self.n:
                raise ValueError(f"{name} must be at most n={self.n}, got {getattr(self, name)}")
        require_not_negative("diversity", self.diversity)
        require_count("ngram", self.ngram, at_least=1)

    async def allocate_widths(self, frontier: Frontier, width: int) -> Allocation:
        tree, closed = frontier.state.tree, [*frontier.state.ended_nodes, *frontier.state.given_up]
        room = Counter(i * self.num_groups // self.n for i in range(self.n))
        if not self.keep_width:
            room.subtract(self.find_parts(tree, closed))
            room = +room  # `merge_extra` may end more branches than a group has width
        groups: dict[int, list[int]] = {}
        for i, group in enumerate(self.find_parts(tree, frontier.nodes)):
            groups.setdefault(group, []).append(i)
        scores = normalise_scores(
            fill_unscored([tree.path_score(node, self.agg_strategy) for node in frontier.nodes]), self.normalise
        )
        ngrams = [find_ngrams(tree.nodes[node].step.tokens, self.ngram) for node in frontier.nodes]
        widths, chosen = [0] * len(frontier.nodes), list[list[Set[Tokens]]]()
        for group, members in sorted(groups.items()):
            num_kept = math.ceil(room[group] / self.beam_width)
            penalised = [scores[i] - self.diversity * sum_similarity(ngrams[i], chosen) for i in members]
            for i, count in zip(members, allocate_to_best(penalised, room[group], num_kept), strict=True):
                widths[i] = count
            chosen.append([ngrams[i] for i in members if widths[i]])
        return Allocation(widths)

    def find_parts(self, tree: SearchTree, nodes: Sequence[int]) -> list[int]:
        """Returns the group of each node; the first steps are divided among the groups, in order."""
        first_steps = [i for i, node in enumerate(tree.nodes) if node.parent == SearchTree.ROOT]
        group_of = {node: i * self.num_groups // self.n for i, node in enumerate(first_steps)}
        return [group_of[tree.path_nodes(node)[0]] for node in nodes]


def find_ngrams(tokens: Tokens, size: int) -> Set[Tokens]:
    """Returns the different n-grams of a step; of one that is shorter than an n-gram, all of it."""
    return {tokens[i : i + size] for i in range(max(1, len(tokens) - size + 1))}


def sum_similarity(ngrams: Set[Tokens], groups: Sequence[Sequence[Set[Tokens]]]) -> float:
    """Adds up the mean similarities of a step with the steps of each group: the share of the n-grams of two steps that
    both have (Jaccard's index), from 0 to 1."""
    return math.fsum(fmean(len(ngrams & other) / len(ngrams | other) for other in group) for group in groups if group)
