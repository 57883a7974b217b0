"""ETS: REBASE restricted to the leaves that are worth their KV cache (arXiv 2502.13575)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from decoding.core import Tokens
from decoding.validation import require_choice, require_not_negative, require_package, require_positive, require_switch
from search.allocation import allocate_by_softmax, rank_by_score
from search.clustering import cluster_steps
from search.level_search import Allocation, Frontier, LevelSearch
from search.strategies.ets_fronts import solve_by_fronts
from search.strategies.ets_program import EtsProgram, KeptLeaves, solve_by_highs
from search.strategy import Resources, SearchResult

log = logging.getLogger(__name__)

COSTS = ("nodes", "tokens")


@dataclass(frozen=True, kw_only=True)
class Ets(LevelSearch):
    """Chooses the leaves to keep by a 0/1 program per level, and distributes the width over them as REBASE does.

    temperature   of the softmax over scores
    normalise     `rank` suits scores of every scale; `none` as published, for scores that fill the range from 0 to 1
    penalty       weight of the KV cost: lambda_b in the paper; 1.0 as published, where scores fill the range
    coverage      weight of semantic diversity: lambda_d in the paper; 1.5, 1.4, 1.45 at widths 16, 64, 256, tuned there
                  on the test set; 0 drops the term and needs no embedder
    cost          cost of a node: `nodes`, one each, as published, or `tokens`, its number of tokens
    cover_first   whether every kept cluster gets one continuation before the rest is distributed by score. Without it,
                  as published, a cluster with low scores may get none although the program kept it
    solver_seconds  time limit of HiGHS, for the programs that need it; then the best solution found, with its gap
    """

    temperature: float = 0.2
    normalise: str = "rank"
    penalty: float = 3.0
    coverage: float = 1.5
    cost: str = "nodes"
    cover_first: bool = False
    solver_seconds: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("temperature", self.temperature)
        require_positive("solver_seconds", self.solver_seconds, at_most=60)  # no budget or disconnect ends the solver
        require_not_negative("penalty", self.penalty)
        require_not_negative("coverage", self.coverage)
        require_choice("cost", self.cost, COSTS)
        require_switch("cover_first", self.cover_first)
        require_package("the program of ETS", "scipy")

    @property
    def needs_embedder(self) -> bool:
        """Whether steps are compared by their meaning; coverage and merging do."""
        return self.merge or self.coverage > 0

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        result = await super().__call__(root, resources)
        reasons = [set(decision.reasons.values()) for decision in result.selections if len(decision.nodes) > 1]
        if len(reasons) > 1 and not any(of_one & {"cost", "redundancy"} for of_one in reasons):
            _warn_of_no_pruning(self.n, self.penalty, self.coverage)
        return result

    async def allocate_widths(self, frontier: Frontier, width: int) -> Allocation:
        clusters = await self._cluster_branches(frontier)
        program = self._build_program(frontier, width, clusters)
        kept_leaves = solve_by_fronts(program)
        if kept_leaves is None:
            # In a thread: HiGHS takes up to `solver_seconds`, in which other searches of this event loop continue.
            kept_leaves = await asyncio.to_thread(solve_by_highs, program, self.solver_seconds)
        widths = self._distribute_width(frontier.scores, width, kept_leaves, clusters)
        note: dict[str, float | str] = {
            "objective": round(kept_leaves.objective, 6),
            "gap": round(kept_leaves.gap, 6),
            "solver": kept_leaves.solver,
        }
        if clusters:
            note |= {"clusters": program.num_clusters, "covered": len({clusters[i] for i in kept_leaves.leaves})}
        return Allocation(widths, _explain_pruned(frontier.nodes, kept_leaves, clusters), note)

    async def _cluster_branches(self, frontier: Frontier) -> list[int]:
        """Cluster of each branch; empty where coverage is off or all steps have the same text."""
        texts = {frontier.state.tree.nodes[node].step.text for node in frontier.nodes}
        if self.coverage == 0 or len(texts) < 2:
            return []
        return await cluster_steps(frontier.state.expander, frontier.nodes, frontier.state.embedder)

    def _build_program(self, frontier: Frontier, width: int, clusters: list[int]) -> EtsProgram:
        tree = frontier.state.tree
        shares = allocate_by_softmax(frontier.scores, width, self.temperature)
        nodes = sorted(tree.pinned_nodes(frontier.nodes))
        index_of = {node: j for j, node in enumerate(nodes)}
        weights = [1 if self.cost == "nodes" else len(tree.nodes[node].step.tokens) for node in nodes]
        total = sum(weights) + (self.cost == "nodes")  # the prompt counts as a node, and is always paid for
        return EtsProgram(
            values=[share / width for share in shares],
            paths=[[index_of[node] for node in tree.path_nodes(leaf)] for leaf in frontier.nodes],
            costs=[weight / total for weight in weights],
            clusters=clusters,
            penalty=self.penalty,
            coverage=self.coverage,
        )

    def _distribute_width(
        self, scores: Sequence[float], width: int, kept_leaves: KeptLeaves, clusters: list[int]
    ) -> list[int]:
        """Distributes the whole width over the kept leaves; 0 for the others."""
        widths = [0] * len(scores)
        if self.cover_first and clusters:
            # Reversed: of the kept leaves of a cluster, the one with the highest score is written last.
            ranked, leaves = rank_by_score(scores), set(kept_leaves.leaves)
            best = {clusters[i]: i for i in reversed(ranked) if i in leaves}
            firsts = set(best.values())
            for i in [i for i in ranked if i in firsts][:width]:
                widths[i] = 1
        rest = allocate_by_softmax([scores[i] for i in kept_leaves.leaves], width - sum(widths), self.temperature)
        for i, count in zip(kept_leaves.leaves, rest, strict=True):
            widths[i] += count
        return widths


@cache
def _warn_of_no_pruning(n: int, penalty: float, coverage: float) -> None:
    """Warns, once in a process for these settings."""
    log.warning(
        "ETS kept every branch of a whole search (n=%d, penalty=%g, coverage=%g), as rebase does: its program prunes "
        "nothing; raise search.penalty, or measure embedder.distance_threshold for this model",
        n,
        penalty,
        coverage,
    )


def _explain_pruned(nodes: Sequence[int], kept_leaves: KeptLeaves, clusters: list[int]) -> dict[int, str]:
    """Reason for each pruned leaf: `redundancy` if a kept one is of the same cluster, else `cost`."""
    leaves = set(kept_leaves.leaves)
    covered = {clusters[i] for i in leaves} if clusters else set()
    pruned = [i for i in range(len(nodes)) if i not in leaves]
    return {nodes[i]: "redundancy" if clusters and clusters[i] in covered else "cost" for i in pruned}
