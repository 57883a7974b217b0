"""Tries the children in the order drawn; each rejection replaces p by its residual distribution for the next child.

For children drawn *without* replacement, as in STAND (arXiv 2506.04708) and Recursive Speculative Decoding
(arXiv 2402.14160). Given that x1 .. x(i-1) were rejected, xi is a draw from q without them. One step of rejection
sampling turns it into a draw from the current p, accepted or not.

Dropping a drawn child because of its probability, or reordering the children, breaks this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.acceptance.residual import exclude_token, residual_distribution
from decoding.speculation.acceptance.uniform_stream import UniformStream, Vector
from decoding.speculation.acceptance.verify import DraftedChildren, TopDownRule
from decoding.speculation.draft import DraftSampling


@dataclass(frozen=True)
class RecursiveRejection(TopDownRule):
    """Recursive rejection sampling without replacement (RRSw)."""

    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = (
        "without_replacement",
        "stochastic_beam",
        "dynamic_tree",
    )
    reads_vocabulary: ClassVar[bool] = False

    def choose_token(self, p_V: Vector, drafted: DraftedChildren, stream: UniformStream) -> int:
        q_K = drafted.q_K
        for _, token, index in drafted.children:
            if stream.accept_ratio(p_V[token], q_K[index]):
                return token
            # p first: its residual subtracts the q that this child was drawn from.
            p_V = residual_distribution(p_V, drafted.ids_K, q_K)
            q_K = exclude_token(q_K, index)
        return stream.sample_index(p_V)
