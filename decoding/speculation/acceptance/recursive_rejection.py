"""Try the children in the order drawn; what rejects one decides what is left for the next.

For children drawn *without* replacement, as in STAND (arXiv 2506.04708) and Recursive Speculative Decoding
(arXiv 2402.14160). Given that x1 .. x(i-1) were rejected, xi is a draw from q without them. One step of rejection
sampling turns it into a draw from the p of that moment, whichever way it ends.

Dropping a drawn child for its own probability, or reordering children, breaks this.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.acceptance.compatibility import check_drawn
from decoding.speculation.acceptance.residual import leftover, without
from decoding.speculation.acceptance.uniform_stream import Coins, Vector
from decoding.speculation.acceptance.verify import Children, P, Walked, children, walk_down, walk_each
from decoding.speculation.interfaces import Branch, Draft, DrawKind
from decoding.speculation.target_logits import Accepted, Target


def decide(p_V: Vector, drawn: Children, coins: Coins) -> int:
    """A token distributed as p, a child's if possible."""
    q_K = drawn.q_K
    for _, token, at in drawn.draws:
        if coins.accept(p_V[token], q_K[at]):
            return token
        p_V, q_K = leftover(p_V, drawn.ids_K, q_K), without(q_K, at)
    return coins.choose(p_V)


@dataclass(frozen=True)
class RecursiveRejection:
    """Recursive rejection sampling without replacement (RRSw)."""

    lossless: ClassVar[bool] = True
    draws: ClassVar[tuple[DrawKind, ...]] = ("without_replacement",)

    def walk(self, draft: Draft, p: P, coins: Coins) -> Walked:
        return walk_down(draft, lambda node: decide(p(node), children(draft, node), coins))

    def accept(self, branches: Items[Branch], drafts: Items[Draft], target: Target) -> list[Accepted]:
        check_drawn(self, drafts)
        return walk_each(self.walk, branches, drafts, target)
