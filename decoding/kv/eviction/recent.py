"""Keeps the question and the most recent tokens, as StreamingLLM does (Xiao et al., 2023, arXiv 2309.17453)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoding.kv.eviction.history import AttentionHistory
from decoding.kv.eviction.policy import EvictionPolicy, Ints, Scores


@dataclass(frozen=True)
class RecentEviction(EvictionPolicy):
    """Evicts the oldest tokens after the question; see `EvictionPolicy`. The question is the attention sink.

    >>> RecentEviction(keep_tokens=3, every=1).choose_kept(np.arange(5), np.zeros(5)).tolist()
    [False, False, True, True, True]
    """

    def score_tokens(self, positions: Ints, tokens: Ints, history: AttentionHistory | None = None) -> Scores:
        """See `EvictionPolicy`."""
        return positions.astype(np.float64)
