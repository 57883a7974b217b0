"""Cautious next token prediction (arXiv 2507.03038): the most probable of several short ways at unsure tokens.

It writes `n` solutions side by side and votes; with n 1 it is the sampler of the paper, with more its self-consistency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from decoding.core import MAX_NUM_TOP, Tokens
from decoding.validation import require_count, require_not_negative, require_text
from search.expand import Expander
from search.sample import build_result, make_candidate
from search.selection import record_selection
from search.strategies.cntp_rules import TrialSteps, choose_trial, count_trials
from search.strategies.token_search import TokenSearch
from search.strategy import Resources, SearchResult
from search.tree import SearchTree

PIECE_TOKENS = 256
"""Longest piece that is written without a look at the other solutions."""


@dataclass(frozen=True, kw_only=True)
class Cntp(TokenSearch):
    """Writes each solution token by token; at a token of high entropy it tries several short continuations.

    A trial goes on up to the next mark of punctuation. The most probable trial stays, the others are thrown away. The
    entropy is that of the model's distribution before temperature; of a server, the part of its likely tokens.

    n             solutions, written side by side
    unsure        entropy in nats above which there are `few` trials
    very_unsure   entropy in nats above which there are `many`
    few, many     trials, the first included
    trial_tokens  longest trial
    marks         characters that end a trial
    num_top       tokens that a server is asked for at every place; the entropy is that of these
    """

    select: str = "majority"
    unsure: float = 0.5
    very_unsure: float = 3.5
    few: int = 3
    many: int = 8
    trial_tokens: int = 10
    marks: str = ".,;:!?\n"
    num_top: int = MAX_NUM_TOP

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative("unsure", self.unsure)
        require_not_negative("very_unsure", self.very_unsure)
        if self.very_unsure < self.unsure:
            raise ValueError(f"very_unsure must be at least unsure={self.unsure}, got {self.very_unsure}")
        require_count("few", self.few, at_least=1)
        require_count("many", self.many, at_least=self.few)
        require_count("trial_tokens", self.trial_tokens, at_least=1)
        require_text("marks", self.marks)
        require_count("num_top", self.num_top, at_least=1, at_most=MAX_NUM_TOP)

    @property
    def rule(self) -> TrialSteps:
        """Where a piece of a solution ends."""
        return TrialSteps(threshold=self.unsure, trial_tokens=self.trial_tokens, marks=self.marks)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        num_top = max(resources.num_top, self.num_top)
        expander = Expander(root, replace(resources, step_rule=self.rule, num_top=num_top))
        nodes = [SearchTree.ROOT] * self.n
        waiting = list(range(self.n))
        while waiting:
            parents = [nodes[i] for i in waiting]
            trials = await self._write_trials(expander, parents)
            chosen = [_choose(expander.tree, group) for group in trials]
            going_on = []
            for i, parent, leaf in zip(waiting, parents, chosen, strict=False):
                nodes[i] = leaf
                if leaf != parent and self._is_open(expander.tree, leaf):
                    going_on.append(i)
            _record_decision(expander, nodes, trials, chosen)
            if len(chosen) < len(parents):  # the budget ran out
                break
            waiting = going_on
        candidates = [make_candidate(expander, node, self.agg_strategy) for node in nodes if node != SearchTree.ROOT]
        return build_result(expander, candidates, self.select, self.unscored)

    async def _write_trials(self, expander: Expander, parents: Sequence[int]) -> list[list[int]]:
        """Writes the next piece behind each parent, as often as the model is unsure there; returns the leaves of each.

        The first trial tells the entropy. The list is shorter than `parents` if the budget ran out.
        """
        groups = [[leaf] for leaf in await self._write_pieces(expander, parents)]
        again: list[int] = []
        for i, (leaf,) in enumerate(groups):
            if leaf != parents[i]:
                again += [i] * (self._count_trials(expander.tree, leaf) - 1)
        further = await self._write_pieces(expander, [parents[i] for i in again]) if again else []
        for i, leaf in zip(again, further, strict=False):
            if leaf != parents[i]:
                groups[i].append(leaf)
        return groups

    async def _write_pieces(self, expander: Expander, parents: Sequence[int]) -> list[int]:
        sampling = replace(self.sampling, max_tokens=max(PIECE_TOKENS, self.trial_tokens))
        return await expander.sample_continuations(
            parents, sampling, one_step=True, path_tokens=self.sampling.max_tokens
        )

    def _count_trials(self, tree: SearchTree, leaf: int) -> int:
        entropies = tree.nodes[leaf].step.entropies
        if entropies is None or not self.rule.is_trial(entropies):
            return 1
        return count_trials(
            float(entropies[0]), unsure=self.unsure, very_unsure=self.very_unsure, few=self.few, many=self.many
        )

    def _is_open(self, tree: SearchTree, leaf: int) -> bool:
        node = tree.nodes[leaf]
        return node.finish is None and node.num_path_tokens < self.sampling.max_tokens


def _choose(tree: SearchTree, leaves: Sequence[int]) -> int:
    if len(leaves) == 1:
        return leaves[0]
    return leaves[choose_trial([tree.nodes[leaf].step.logprobs for leaf in leaves])]


def _record_decision(
    expander: Expander, nodes: Sequence[int], trials: Sequence[Sequence[int]], chosen: Sequence[int]
) -> None:
    """Records which trials stay, where there was a choice. *Mutates* the records of the search."""
    if all(len(group) == 1 for group in trials):
        return
    tried = [leaf for group in trials for leaf in group]
    others = [node for node in nodes if node != SearchTree.ROOT and node not in set(tried)]
    staying = {*others, *chosen}
    branches = list(dict.fromkeys(node for node in (*others, *tried) if node != SearchTree.ROOT))
    decision = record_selection(expander.tree, branches, [int(node in staying) for node in branches])
    expander.selections.append(decision)
    if expander.resources.on_selection is not None:
        expander.resources.on_selection(decision)
