"""Tries k independent draws with one threshold, chosen so that all of them together accept no more than p.

SpecTr's k-sequential selection (arXiv 2310.15141): at least 1 - 1/e of the acceptance of the best rule for such draws.

    b(r) = sum of min(p / r, q)         accepted by one draw that is accepted with probability min(1, p / (r q))
    A    = 1 - (1 - b)^k                accepted by k draws
    r    is the least in [1, k] with A <= r b; with a smaller r some token would be more likely than p

Shapes: V vocabulary, K ids drawn from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from decoding.speculation.acceptance.residual import normalize_weights
from decoding.speculation.acceptance.uniform_stream import UniformStream, Vector
from decoding.speculation.acceptance.verify import DraftedChildren, TopDownRule
from decoding.speculation.draft import DraftSampling

_HALVINGS = 24


def find_divisor(p_K: Vector, q_K: Vector, k: int) -> float:
    """Returns r for k draws, rounded up: a larger r accepts a little less and is just as lossless."""
    low, high = 1.0, float(k)
    for _ in range(_HALVINGS if k > 1 else 0):
        middle = (low + high) / 2
        b = np.minimum(p_K / middle, q_K).sum()
        if 1 - (1 - b) ** k <= middle * b:
            high = middle
        else:
            low = middle
    return high  # never `low`: it may be below r, which is not lossless


@dataclass(frozen=True)
class KSequential(TopDownRule):
    """SpecTr's k-sequential rule (K-SEQ)."""

    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = ("iid",)
    reads_vocabulary: ClassVar[bool] = False

    def choose_token(self, p_V: Vector, drafted: DraftedChildren, stream: UniformStream) -> int:
        k = len(drafted.children)
        if not k:
            return stream.sample_index(p_V)
        p_K = p_V[drafted.ids_K]
        r = find_divisor(p_K, drafted.q_K, k)
        for _, token, index in drafted.children:
            if stream.accept_ratio(p_V[token], r * drafted.q_K[index]):
                return token
        # The residual subtracts what k draws accept of each token, A / b times what one does.
        accepted_K = np.minimum(p_K / r, drafted.q_K)
        b = accepted_K.sum()
        residual_V = p_V.copy()
        if b > 0:  # else no draw could be accepted, and the residual is p
            residual_V[drafted.ids_K] = np.maximum(p_K - accepted_K * ((1 - (1 - b) ** k) / b), 0)
        return stream.sample_index(normalize_weights(residual_V, otherwise=p_V))
