"""Tries independent draws one after the other against the same q; each rejection subtracts q from p.

SpecInfer's multi-step speculative sampling (arXiv 2305.09781). A token drawn twice is tried twice: without the second
try the draws are no longer independent. (SpecInfer tries them in random order; they are exchangeable.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.acceptance.residual import residual_distribution
from decoding.speculation.acceptance.uniform_stream import UniformStream, Vector
from decoding.speculation.acceptance.verify import DraftedChildren, TopDownRule
from decoding.speculation.draft import DraftSampling


@dataclass(frozen=True)
class RecursiveIid(TopDownRule):
    """Recursive rejection sampling of independent draws."""

    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = ("iid",)
    reads_vocabulary: ClassVar[bool] = False

    def choose_token(self, p_V: Vector, drafted: DraftedChildren, stream: UniformStream) -> int:
        for _, token, index in drafted.children:
            if stream.accept_ratio(p_V[token], drafted.q_K[index]):
                return token
            # q stays: the next draw is from the same q, and this token may be drawn again.
            p_V = residual_distribution(p_V, drafted.ids_K, drafted.q_K)
        return stream.sample_index(p_V)
