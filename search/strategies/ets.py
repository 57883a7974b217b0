"""ETS: REBASE on those leaves only that are worth the KV they pin (arXiv 2502.13575)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.validation import require_choice, require_not_negative, require_positive, require_switch
from search.allocation import best_first, softmax_widths
from search.clustering import same_meaning
from search.level_search import Allocation, Frontier, LevelSearch
from search.strategies.ets_program import Kept, Program, solve

COSTS = ("nodes", "tokens")


@dataclass(frozen=True, kw_only=True)
class Ets(LevelSearch):
    """Every level a 0/1 program chooses the leaves to keep, and the whole width is dealt to them as in REBASE.

    temperature   of the softmax over scores
    penalty       what KV costs: the paper's lambda_b; 1.0 as published
    coverage      what different ideas are worth: the paper's lambda_d; 1.5, 1.4, 1.45 at widths 16, 64, 256 as
                  published, tuned there on the test set; 0 leaves the term out, and needs no embedder
    cost          what a node costs: `nodes`, one each, as published, or `tokens`, the KV it holds
    cover_first   every kept cluster gets a continuation before the rest is dealt by score. The published way (false)
                  lets low scores starve a cluster that the program has just paid for
    solver_seconds  after which the best choice so far, or the greedy's, is taken, and the gap noted
    """

    temperature: float = 0.2
    penalty: float = 1.0
    coverage: float = 1.5
    cost: str = "nodes"
    cover_first: bool = False
    solver_seconds: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("temperature", self.temperature)
        require_positive("solver_seconds", self.solver_seconds)
        require_not_negative("penalty", self.penalty)
        require_not_negative("coverage", self.coverage)
        require_choice("cost", self.cost, COSTS)
        require_switch("cover_first", self.cover_first)

    @property
    def needs_embedder(self) -> bool:
        """Coverage, like merging, compares steps by what they say."""
        return self.merge or self.coverage > 0

    async def allocate(self, frontier: Frontier, width: int) -> Allocation:
        clusters = await self._clusters(frontier)
        program = self._program(frontier, width, clusters)
        kept = await asyncio.to_thread(solve, program, self.solver_seconds)
        widths = self._deal(frontier.scores, width, kept, clusters)
        note = {"objective": round(kept.objective, 6), "gap": round(kept.gap, 6), "solver": kept.solver}
        if clusters:
            note |= {"clusters": program.count, "covered": len({clusters[i] for i in kept.leaves})}
        return Allocation(widths, _reasons(frontier.nodes, kept, clusters), note)

    async def _clusters(self, frontier: Frontier) -> list[int]:
        """A cluster per branch, or none where there is nothing to tell apart."""
        texts = {frontier.walk.tree.nodes[node].step.text for node in frontier.nodes}
        if self.coverage == 0 or len(texts) < 2:
            return []
        return await same_meaning(frontier.walk.run, frontier.nodes, frontier.walk.embedder)

    def _program(self, frontier: Frontier, width: int, clusters: list[int]) -> Program:
        tree = frontier.walk.tree
        shares = softmax_widths(frontier.scores, width, self.temperature)
        nodes = sorted(tree.pinned(frontier.nodes))
        number = {node: j for j, node in enumerate(nodes)}
        weights = [1 if self.cost == "nodes" else len(tree.nodes[node].step.tokens) for node in nodes]
        whole = sum(weights) + (self.cost == "nodes")  # the prompt counts as a node, and is always paid for
        return Program(
            values=[share / width for share in shares],
            paths=[[number[node] for node in tree.path(leaf)] for leaf in frontier.nodes],
            costs=[weight / whole for weight in weights],
            clusters=clusters,
            penalty=self.penalty,
            coverage=self.coverage,
        )

    def _deal(self, scores: Sequence[float], width: int, kept: Kept, clusters: list[int]) -> list[int]:
        """The whole width for the kept leaves."""
        widths = [0] * len(scores)
        if self.cover_first and clusters:
            best = {clusters[i]: i for i in reversed(best_first(scores)) if i in kept.leaves}
            for i in [i for i in best_first(scores) if i in best.values()][:width]:
                widths[i] = 1
        rest = softmax_widths([scores[i] for i in kept.leaves], width - sum(widths), self.temperature)
        for i, more in zip(kept.leaves, rest, strict=True):
            widths[i] += more
        return widths


def _reasons(nodes: Sequence[int], kept: Kept, clusters: list[int]) -> dict[int, str]:
    """Why the program left a leaf out: its idea is covered by another, or it is not worth its KV."""
    covered = {clusters[i] for i in kept.leaves} if clusters else set()
    out = [i for i in range(len(nodes)) if i not in set(kept.leaves)]
    return {nodes[i]: "redundancy" if clusters and clusters[i] in covered else "cost" for i in out}
