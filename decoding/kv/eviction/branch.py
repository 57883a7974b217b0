"""Tracks which tokens of one branch have KV, for its eviction policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.kv.eviction.history import AttentionHistory, Floats
from decoding.kv.eviction.policy import Bools, EvictionPolicy, Ints

_NONE: Ints = np.empty(0, dtype=np.int64)


class BranchEviction:
    """The eviction of one branch, whose first `question_length` tokens always keep their KV."""

    def __init__(self, policy: EvictionPolicy, question_length: int) -> None:
        self.policy, self.question_length = policy, question_length
        self.clear()

    def clear(self) -> None:
        """Starts over, for a branch whose KV is computed again. *Mutates*."""
        self._positions = _NONE  # tokens that were kept at the last border, counted from the end of the question
        self._end = 0  # that border
        self._history = AttentionHistory() if self.policy.needs_attention else None

    @property
    def max_cached(self) -> int:
        """Tokens that a cached prefix may cover: those before the first border, all of which have KV.

        One less, so that a round reaches the border. Only the question where the policy has to see each token attend.
        """
        if self.policy.needs_attention:
            return self.question_length
        return self.question_length + self.policy.find_border(0) - 1

    def find_border(self, num_computed: int) -> int:
        """Returns the first length of the whole text, above `num_computed`, at which the branch evicts."""
        if num_computed < self.question_length:
            return self.question_length + self.policy.find_border(0)
        return self.question_length + self.policy.find_border(num_computed - self.question_length)

    def is_border(self, num_computed: int) -> bool:
        """Returns whether the branch evicts at this length of the whole text."""
        return num_computed > 0 and self.find_border(num_computed - 1) == num_computed

    def observe_attention(self, first: int, attention: Floats) -> None:
        """Records the attention of the tokens that a round has committed. *Mutates*.

        first      position of the first of them
        attention  `[rows, keys]`, keys in the order of the branch's slots, theirs included
        """
        if self._history is None:
            return
        begin = self.question_length
        # those of the question are kept anyway
        self._history.add_tokens(np.arange(max(first, begin), first + len(attention)) - begin)
        for step, weights in enumerate(attention, first - begin):
            if step >= 0:
                self._history.add_step(step, weights[begin:], self.policy.threshold)

    def choose_kept(self, tokens: Sequence[int]) -> Bools:
        """Returns which of the slots of a branch are kept at a border, bool `[num_slots]`.

        tokens  the whole text up to the border

        *Mutates*: notes what is kept.
        """
        text = np.array(tokens[self.question_length :], dtype=np.int64)
        positions = np.concatenate([self._positions, np.arange(self._end, len(text))])
        is_kept = self.policy.choose_kept(positions, text, self._history)
        if self._history is not None:
            self._history = self._history.select(is_kept)
        self._positions, self._end = positions[is_kept], len(text)
        return np.concatenate([np.ones(self.question_length, dtype=np.bool_), is_kept])
