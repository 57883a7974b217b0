"""What a search decided, in order: who was open, who goes on how often, who does not and why, and the KV it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from search.tree import SearchTree

REASONS = ("score", "redundancy", "cost", "budget", "decided")


@dataclass(frozen=True)
class Selection:
    """One decision over open branches.

    size           nodes in the tree when it was taken
    nodes, widths  branches and how many continuations each was given; 0 is pruned, for now
    reasons        why, for those that got none: `score` (others were better), `redundancy` (another says the same),
                   `cost` (not worth the KV it pins), `budget` (nothing was left) or `decided` (the vote was)
    kv_tokens      tokens of all open branches before the decision, shared ones once, prompt excluded
    kv_nodes       nodes on their paths
    kept_tokens    the same, of those that go on
    kept_nodes
    note           what else the strategy has to say, such as the gap of an optimisation
    """

    size: int
    nodes: tuple[int, ...]
    widths: tuple[int, ...]
    reasons: dict[int, str]
    kv_tokens: int
    kv_nodes: int
    kept_tokens: int
    kept_nodes: int
    note: dict[str, Any] = field(default_factory=dict)


def selection(
    tree: SearchTree,
    nodes: Sequence[int],
    widths: Sequence[int],
    *,
    reasons: dict[int, str] | None = None,
    still_open: Iterable[int] = (),
    note: dict[str, Any] | None = None,
) -> Selection:
    """The record of a decision. Where no reason is given it is `score`; `still_open` are branches it was not about."""
    kept = [node for node, width in zip(nodes, widths, strict=True) if width]
    why = {node: (reasons or {}).get(node, "score") for node in nodes if node not in set(kept)}
    others = list(still_open)
    before, after = tree.pinned([*nodes, *others]), tree.pinned([*kept, *others])
    return Selection(
        size=len(tree),
        nodes=tuple(nodes),
        widths=tuple(widths),
        reasons=why,
        kv_tokens=tree.count_tokens(before),
        kv_nodes=len(before),
        kept_tokens=tree.count_tokens(after),
        kept_nodes=len(after),
        note=note or {},
    )
