"""Bytes that the draft nodes of a round hold, beyond those of a round without drafts.

Counted is what lives until the round has been verified: K and V in slots of the pool, rows of logits, rows of the
attention mask, the target's top tokens for the drafter, and the arrays of the draft. What a layer computes and drops
again is not: rounds that fill prompts have more of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

_LOGIT_BYTES = 8  # float32, and as much for the copy that is normalised
_TOP_BYTES = 12  # an id and its log-probability
_NODE_BYTES = 40  # token, parent, probability, label and position


@dataclass(frozen=True)
class DraftMemory:
    """Sizes of a model's draft nodes.

    kv_bytes    of a token's K and V in all layers
    vocabulary  columns of a row of logits
    feedback_k  top tokens that a drafter reads after each row
    """

    kv_bytes: int
    vocabulary: int
    feedback_k: int = 0

    def bytes_per_node(self, context_tokens: int) -> int:
        """Returns the bytes of a node that attends to so many tokens, without those for other nodes in its mask."""
        return (
            self.kv_bytes
            + _LOGIT_BYTES * self.vocabulary
            + _TOP_BYTES * self.feedback_k
            + _NODE_BYTES
            + context_tokens  # a row of the mask has a byte per key
        )

    def round_bytes(self, nodes: int, context_tokens: int) -> int:
        """Returns the bytes of `nodes` nodes, at most: as if all were in one draft, where each masks all others.

        >>> DraftMemory(kv_bytes=1000, vocabulary=100).round_bytes(3, context_tokens=60)     # 3 * 1900 + 3 * 3
        5709
        """
        return nodes * (self.bytes_per_node(context_tokens) + nodes)

    def count_nodes(self, budget_bytes: int, context_tokens: int) -> int:
        """Returns the largest number of nodes whose `round_bytes` fit the budget.

        >>> [DraftMemory(1000, 100).count_nodes(size, 60) for size in (5708, 5709)]
        [2, 3]
        """
        half = self.bytes_per_node(context_tokens)
        return (math.isqrt(half * half + 4 * budget_bytes) - half) // 2


@runtime_checkable
class MemoryLimited(Protocol):
    """Controller that decides by the bytes of draft nodes."""

    def set_memory(self, memory: DraftMemory) -> None:
        """Stores the sizes of the engine's model, before the first round. *Mutates*."""
        ...
