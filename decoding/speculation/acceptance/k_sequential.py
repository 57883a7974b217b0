"""Try k independent draws with one and the same threshold, chosen so that all of them together ask no more than p.

SpecTr's k-sequential selection (arXiv 2310.15141): at least 1 - 1/e of what the best rule for such draws accepts.

    b(r) = sum of min(p / r, q)         accepted by one draw that is kept with probability min(1, p / (r q))
    A    = 1 - (1 - b)^k                accepted by k of them
    r    is the least in [1, k] with A <= r b, or else some token would come out more often than p says

Shapes: V vocabulary, K ids drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from decoding.speculation.acceptance.compatibility import check_drawn
from decoding.speculation.acceptance.residual import normalised
from decoding.speculation.acceptance.uniform_stream import Coins, Vector
from decoding.speculation.acceptance.verify import Children, P, Walked, children, walk_down, walk_each
from decoding.speculation.interfaces import Branch, Draft, DrawKind
from decoding.speculation.target_logits import Accepted, Target

_HALVINGS = 24


def threshold(p_K: Vector, q_K: Vector, k: int) -> float:
    """r for k draws, rounded up: a larger r accepts a little less and is just as lossless."""
    low, high = 1.0, float(k)
    for _ in range(_HALVINGS if k > 1 else 0):
        middle = (low + high) / 2
        b = np.minimum(p_K / middle, q_K).sum()
        if 1 - (1 - b) ** k <= middle * b:
            high = middle
        else:
            low = middle
    return high


def decide(p_V: Vector, drawn: Children, coins: Coins) -> int:
    """A token distributed as p, a child's if possible."""
    k = len(drawn.draws)
    if not k:
        return coins.choose(p_V)
    p_K = p_V[drawn.ids_K]
    r = threshold(p_K, drawn.q_K, k)
    for _, token, at in drawn.draws:
        if coins.accept(p_V[token], r * drawn.q_K[at]):
            return token
    kept_K = np.minimum(p_K / r, drawn.q_K)
    b = kept_K.sum()
    rest_V = p_V.copy()
    if b > 0:
        rest_V[drawn.ids_K] = np.maximum(p_K - kept_K * ((1 - (1 - b) ** k) / b), 0)
    return coins.choose(normalised(rest_V, otherwise=p_V))


@dataclass(frozen=True)
class KSequential:
    """SpecTr's k-sequential rule (K-SEQ)."""

    lossless: ClassVar[bool] = True
    draws: ClassVar[tuple[DrawKind, ...]] = ("iid",)

    def walk(self, draft: Draft, p: P, coins: Coins) -> Walked:
        return walk_down(draft, lambda node: decide(p(node), children(draft, node), coins))

    def accept(self, branches: Items[Branch], drafts: Items[Draft], target: Target) -> list[Accepted]:
        check_drawn(self, drafts)
        return walk_each(self.walk, branches, drafts, target)
