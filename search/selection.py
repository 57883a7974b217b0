"""Records the decisions of a search: open branches, number of continuations, reasons, and KV before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from search.open_paths import OpenPaths
from search.tree import SearchTree

REASONS = ("score", "redundancy", "cost", "budget", "decided")


@dataclass(frozen=True)
class Selection:
    """One decision over open branches. Token and node counts are those of paths, shared ones once, prompt excluded.

    size           nodes in the tree at the time of the decision
    nodes, widths  branches, and the number of continuations of each; 0 is pruned, for now
    reasons        per branch with width 0: `score` (others were better), `redundancy` (another has the same meaning),
                   `cost` (not worth its KV), `budget` (exhausted) or `decided` (early stop)
    kv_tokens      tokens of all open branches before the decision
    kv_nodes       nodes of all open branches before the decision
    kept_tokens    tokens of the branches that are continued
    kept_nodes     nodes of the branches that are continued
    note           further values of the strategy, such as an optimality gap
    """

    size: int
    nodes: tuple[int, ...]
    widths: tuple[int, ...]
    reasons: dict[int, str]
    kv_tokens: int
    kv_nodes: int
    kept_tokens: int
    kept_nodes: int
    note: dict[str, float | str] = field(default_factory=dict)


def record_selection(
    tree: SearchTree,
    nodes: Sequence[int],
    widths: Sequence[int],
    *,
    reasons: Mapping[int, str] | None = None,
    still_open: OpenPaths | None = None,
    note: Mapping[str, float | str] | None = None,
) -> Selection:
    """Builds the record of a decision.

    reasons     per pruned branch; `score` where it has none
    still_open  open branches that this decision did not consider: their KV is needed before and after
    """
    continued = {node for node, width in zip(nodes, widths, strict=True) if width}
    others = OpenPaths(tree) if still_open is None else still_open
    pruned = [node for node in nodes if node not in continued]
    (kept_nodes, kept_tokens), (kv_nodes, kv_tokens) = others.count_with(continued, pruned)
    return Selection(
        size=len(tree),
        nodes=tuple(nodes),
        widths=tuple(widths),
        reasons={node: (reasons or {}).get(node, "score") for node in pruned},
        kv_tokens=kv_tokens,
        kv_nodes=kv_nodes,
        kept_tokens=kept_tokens,
        kept_nodes=kept_nodes,
        note=dict(note or {}),
    )
