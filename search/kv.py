"""How much KV a search pins, step by step, counted on its tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.selection import Selection, selection
from search.strategy import SearchResult
from search.tree import SearchTree


@dataclass(frozen=True)
class KVUse:
    """Means over the steps of one search, shared tokens counted once.

    steps            decisions over open branches
    frontier_tokens  tokens of all open branches before a decision, prompt excluded: what the published ETS code adds
                     up and calls KV size (it counts the prompt as two tokens)
    frontier_nodes   nodes on their paths
    kept_tokens      what the next step really needs: the branches that go on, and the prompt
    kept_nodes       nodes on their paths
    peak_tokens      the most that was open at once, prompt included
    """

    steps: int = 0
    frontier_tokens: float = 0.0
    frontier_nodes: float = 0.0
    kept_tokens: float = 0.0
    kept_nodes: float = 0.0
    peak_tokens: int = 0


def kv_use(result: SearchResult) -> KVUse:
    """The KV of a search; where it took no decisions (samples), all branches go on at every depth."""
    tree = result.tree
    decisions = [d for d in result.selections or by_depth(tree) if any(d.widths)]  # the last may have given up all
    if not decisions:
        return KVUse()

    def mean(values: Sequence[int]) -> float:
        return sum(values) / len(values)

    return KVUse(
        steps=len(decisions),
        frontier_tokens=mean([d.kv_tokens for d in decisions]),
        frontier_nodes=mean([d.kv_nodes for d in decisions]),
        kept_tokens=len(tree.root) + mean([d.kept_tokens for d in decisions]),
        kept_nodes=mean([d.kept_nodes for d in decisions]),
        peak_tokens=len(tree.root) + max(d.kv_tokens for d in decisions),
    )


def by_depth(tree: SearchTree) -> tuple[Selection, ...]:
    """What a search by levels would have decided that prunes nothing: everything open at a depth goes on."""
    inner = {node.parent for node in tree.nodes}
    levels: dict[int, list[int]] = {}
    for i in sorted(inner - {SearchTree.ROOT}):
        levels.setdefault(tree.nodes[i].depth, []).append(i)
    return tuple(selection(tree, nodes, [1] * len(nodes)) for _, nodes in sorted(levels.items()))
