"""Keeps random tokens, a baseline for policies that score them.

A token's score is a hash of the seed and the text up to it. So branches with different texts keep different positions,
a branch that continues another keeps what that has kept, and a second run keeps the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoding.kv.eviction.history import AttentionHistory
from decoding.kv.eviction.policy import EvictionPolicy, Ints, Scores
from decoding.noise import mix_uint64
from decoding.validation import MAX_INT, require_count


@dataclass(frozen=True)
class RandomEviction(EvictionPolicy):
    """Evicts uniformly chosen tokens before the last `every`; see `EvictionPolicy`.

    seed  of the choice

    >>> RandomEviction(keep_tokens=3, every=1).choose_kept(np.arange(6), np.arange(6)).tolist()
    [False, False, False, True, True, True]
    """

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("seed", self.seed, at_most=MAX_INT)

    def score_tokens(self, positions: Ints, tokens: Ints, history: AttentionHistory | None = None) -> Scores:
        """See `EvictionPolicy`."""
        numbers = np.arange(len(tokens), dtype=np.uint64)
        # a sum of hashes of (position, token): each prefix has its own, and all are one pass over the text
        prefix = np.cumsum(mix_uint64(mix_uint64(numbers) ^ tokens.astype(np.uint64)), dtype=np.uint64)
        key = mix_uint64(np.array([self.seed], dtype=np.uint64))
        return (mix_uint64(prefix ^ key)[positions] >> np.uint64(11)).astype(np.float64)
