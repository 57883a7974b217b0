"""Keeps tokens that are likely to be attended to again, by how often they were (LazyEviction, arXiv 2506.15969).

In long thoughts many tokens are attended to again after a pause. MRI is the longest pause of a token so far, its
maximum recurrence interval. A token is likely to recur while the time since it was last attended to is within that.
The summaries of the paper that we have disagree on its second score; ours, 1 / (1 + MRI), favours short intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from decoding.kv.eviction.history import AttentionHistory
from decoding.kv.eviction.policy import EvictionPolicy, Ints, Scores
from decoding.validation import require_share


@dataclass(frozen=True)
class LazyEviction(EvictionPolicy):
    """Evicts tokens that are not likely to recur, of those before the last `every`; see `EvictionPolicy`.

    threshold  attention, as a mean over layers and heads, above which a token counts as attended to

    A slot holds the KV of all layers and heads, so they share one history; the paper's cache has one for each.
    """

    threshold: float = 0.001
    needs_attention: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share("threshold", self.threshold, above_zero=True, below_one=True)

    def score_tokens(self, positions: Ints, tokens: Ints, history: AttentionHistory | None = None) -> Scores:
        """See `EvictionPolicy`; a token that was never attended to again has 0."""
        assert history is not None
        scores: Scores = np.zeros(len(positions), dtype=np.float64)
        recurs = history.intervals > 0
        intervals = history.intervals[recurs]
        pauses = (len(tokens) - history.last_steps[recurs]) / intervals
        # 2 * sigmoid(-x), as the exponent of a number >= 0 would overflow
        scores[recurs] = 2 * np.exp(-pauses) / (1 + np.exp(-pauses)) + 1 / (1 + intervals)
        return scores
