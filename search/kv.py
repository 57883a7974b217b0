"""Measures how much KV cache a search needs, from the decisions over its tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.selection import Selection, record_selection
from search.strategy import SearchResult
from search.tree import SearchTree


@dataclass(frozen=True)
class KVFootprint:
    """Means over the decisions of one search, in tokens and nodes; a shared prefix counts once.

    steps            decisions over open branches
    frontier_tokens  tokens of all open branches before a decision, prompt excluded: the "KV size" of the published ETS
                     code (which counts the prompt as two tokens)
    frontier_nodes   nodes of all open branches before a decision
    kept_tokens      tokens that the next step needs: those of the branches that are continued, and of their prompts
    kept_nodes       nodes of the branches that are continued
    peak_tokens      maximum of open tokens over the decisions, prompts included
    """

    steps: int = 0
    frontier_tokens: float = 0.0
    frontier_nodes: float = 0.0
    kept_tokens: float = 0.0
    kept_nodes: float = 0.0
    peak_tokens: int = 0


def measure_kv(result: SearchResult) -> KVFootprint:
    """Computes the KV footprint of a search; without decisions (samples), all branches count as open at every depth."""
    tree = result.tree
    decisions = result.selections or decisions_by_depth(tree)
    decisions = tuple(decision for decision in decisions if any(decision.widths))  # the last one may prune all branches
    if not decisions:
        return KVFootprint()

    def mean(values: Sequence[int]) -> float:
        return sum(values) / len(values)

    return KVFootprint(
        steps=len(decisions),
        frontier_tokens=mean([d.kv_tokens for d in decisions]),
        frontier_nodes=mean([d.kv_nodes for d in decisions]),
        kept_tokens=mean([tree.count_prompt_tokens(_continued(d)) + d.kept_tokens for d in decisions]),
        kept_nodes=mean([d.kept_nodes for d in decisions]),
        peak_tokens=max(tree.count_prompt_tokens(d.nodes) + d.kv_tokens for d in decisions),
    )


def _continued(decision: Selection) -> list[int]:
    return [node for node, width in zip(decision.nodes, decision.widths, strict=True) if width]


def decisions_by_depth(tree: SearchTree) -> tuple[Selection, ...]:
    """Decisions of a search by levels that prunes nothing: all open branches of a depth are continued."""
    inner = {node.parent for node in tree.nodes}
    levels: dict[int, list[int]] = {}
    for i in sorted(node for node in inner if node >= 0):
        levels.setdefault(tree.nodes[i].depth, []).append(i)
    return tuple(record_selection(tree, nodes, [1] * len(nodes)) for _, nodes in sorted(levels.items()))
