"""Judge whole paths, leaves first, so that a good end may save a doubtful beginning.

Traversal verification (arXiv 2505.12398), for children drawn without replacement; on a chain it is block
verification (arXiv 2403.10444), which no rule for one path beats.

A node is reached with a weight w, the chance to be kept that its path has earned: 1 at the anchor, and
min(1, w p / q) of its parent's w for a child. When a child and all below it are rejected, its parent goes on with

    (w p - q)+  over its sum Z    for p
    Z / (Z + 1 - w)               for w
    q without the child           for q

and, once it has no child left, is kept with its last w. The draws below different nodes must be independent
of each other: this rule looks at all of them before it settles the first token.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, ClassVar

from decoding.speculation.acceptance.compatibility import check_drawn
from decoding.speculation.acceptance.residual import excess, normalised, without
from decoding.speculation.acceptance.uniform_stream import Coins, Vector
from decoding.speculation.acceptance.verify import P, Walked, children, walk_each
from decoding.speculation.interfaces import Branch, Draft, DrawKind
from decoding.speculation.target_logits import Accepted, Target


@dataclass(frozen=True)
class Traversal:
    """Traversal verification: bottom up, in the order drawn."""

    lossless: ClassVar[bool] = True
    draws: ClassVar[tuple[DrawKind, ...]] = ("without_replacement",)

    def walk(self, draft: Draft, p: P, coins: Coins) -> Walked:
        found = _visit(draft, p, coins, -1, 1)
        assert found is not None, "the anchor's weight stays 1"
        return found

    def accept(self, branches: Items[Branch], drafts: Items[Draft], target: Target) -> list[Accepted]:
        check_drawn(self, drafts)
        return walk_each(self.walk, branches, drafts, target)


def _visit(draft: Draft, p: P, coins: Coins, node: int, w: Any) -> Walked | None:
    """The path kept at or below `node`, reached with weight `w`, or None where all of it is rejected."""
    p_V, drawn = p(node), children(draft, node)
    q_K = drawn.q_K
    for child, token, at in drawn.draws:
        earned = w * p_V[token]
        found = _visit(draft, p, coins, child, earned / q_K[at] if earned < q_K[at] else 1)
        if found is not None:
            return found
        p_V, w = _after_rejection(p_V, w, drawn.ids_K, q_K)
        q_K = without(q_K, at)
    return Walked(draft.path_to(node), coins.choose(p_V)) if coins.accept(w) else None


def _after_rejection(p_V: Vector, w: Any, ids_K: Vector, q_K: Vector) -> tuple[Vector, Any]:
    rest_V = excess(w * p_V, ids_K, q_K)
    z = rest_V.sum()
    if not z > 0:
        # Either w is below 1 and nothing is left to keep, or the rejection had probability 0.
        return p_V, 1 if w == 1 else 0
    # The brackets keep the anchor's weight exactly 1, and a small z from drowning in 1.
    return normalised(rest_V, otherwise=p_V), z / (z + (1 - w))
