"""Try independent draws one after the other against the same q; each rejection lowers p by q.

SpecInfer's multi-step speculative sampling (arXiv 2305.09781). A token drawn twice is tried twice: leave out the
second and the draws are no longer independent. (SpecInfer tries them in random order; they are exchangeable.)
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.acceptance.compatibility import check_drawn
from decoding.speculation.acceptance.residual import leftover
from decoding.speculation.acceptance.uniform_stream import Coins, Vector
from decoding.speculation.acceptance.verify import Children, P, Walked, children, walk_down, walk_each
from decoding.speculation.interfaces import Branch, Draft, DrawKind
from decoding.speculation.target_logits import Accepted, Target


def decide(p_V: Vector, drawn: Children, coins: Coins) -> int:
    """A token distributed as p, a child's if possible."""
    for _, token, at in drawn.draws:
        if coins.accept(p_V[token], drawn.q_K[at]):
            return token
        p_V = leftover(p_V, drawn.ids_K, drawn.q_K)
    return coins.choose(p_V)


@dataclass(frozen=True)
class RecursiveIid:
    """Recursive rejection sampling of independent draws."""

    lossless: ClassVar[bool] = True
    draws: ClassVar[tuple[DrawKind, ...]] = ("iid",)

    def walk(self, draft: Draft, p: P, coins: Coins) -> Walked:
        return walk_down(draft, lambda node: decide(p(node), children(draft, node), coins))

    def accept(self, branches: Items[Branch], drafts: Items[Draft], target: Target) -> list[Accepted]:
        check_drawn(self, drafts)
        return walk_each(self.walk, branches, drafts, target)
