"""Tracks the tokens of one sequence and the KV slots they occupy.

tokens  [0, len)                     committed: the prefix and all tokens generated after it
slots   [0, num_computed)            KV is present
        [0, num_cached)              ... in slots of the prefix cache, pinned through `prefix_node`
        [num_cached, num_computed)   ... in slots of this sequence alone
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.core import Tokens
from decoding.kv.prefix_cache import RadixNode, TokenArray
from decoding.kv.slots import Slots

_SPARE_SLOTS = 64  # room for generated tokens before the array of slots must grow


class TokenSequence:
    """Tokens with KV. Subclasses add what the sequence is run for: generation, encoding or drafting."""

    def __init__(self, arrival: int, tokens: Tokens) -> None:
        self.arrival = arrival
        self.tokens: list[int] = list(tokens)
        self.prefix_node: RadixNode | None = None
        self.num_computed = 0
        self.num_cached = 0
        self._slots: Slots = np.empty(len(tokens) + _SPARE_SLOTS, dtype=np.int64)

    @property
    def max_cached(self) -> int:
        """Tokens that a cached prefix may cover at most: the last one must be fed to predict the next."""
        return len(self.tokens) - 1

    @property
    def num_uncomputed(self) -> int:
        """Committed tokens without KV; 1 while decoding, more while a prompt or a preempted sequence is filled."""
        return len(self.tokens) - self.num_computed

    @property
    def slots(self) -> Slots:
        """A view of the slots of tokens `[0, num_computed)`."""
        # not to be kept: `_reserve_slots` may replace the array
        return self._slots[: self.num_computed]

    def token_array(self, length: int | None = None) -> TokenArray:
        """Returns the first `length` committed ids (all of them by default) as an array."""
        return np.array(self.tokens[:length], dtype=np.int64)

    def read_cached(self, node: RadixNode, slots: Slots) -> None:
        """Reads the first `len(slots)` tokens from the cache's slots. *Mutates*; the caller has locked `node`."""
        self.prefix_node = node
        self.num_cached = len(slots)
        self.num_computed = max(self.num_computed, len(slots))
        self._reserve_slots(self.num_computed)
        # also over slots that `insert` has just freed: only the cache's are locked
        self._slots[: len(slots)] = slots

    def append_slots(self, slots: Slots) -> None:
        """Records that the KV of the next `len(slots)` tokens is in `slots`, which are this sequence's. *Mutates*."""
        end = self.num_computed + len(slots)
        self._reserve_slots(end)
        self._slots[self.num_computed : end] = slots
        self.num_computed = end

    def view_slots(self, first: int, next_slots: Slots) -> Slots:
        """Returns a view of the slots from token `first` on, with `next_slots` for tokens whose KV is not there yet.

        Valid until the next method that mutates. `num_computed` stays: those slots need not become this sequence's.
        """
        end = self.num_computed + len(next_slots)
        self._reserve_slots(end)
        self._slots[self.num_computed : end] = next_slots
        return self._slots[first:end]

    def clear_slots(self) -> None:
        """Removes all KV; the caller has already freed the slots and released the lock. *Mutates*."""
        self.prefix_node, self.num_computed, self.num_cached = None, 0, 0

    def append_tokens(self, tokens: Sequence[int]) -> None:
        """Commits more tokens. *Mutates*."""
        self.tokens.extend(tokens)

    def _reserve_slots(self, length: int) -> None:
        if length > len(self._slots):
            # doubling: appending one token a round must not copy the array each time
            # the new tail repeats old slots; nothing reads beyond `num_computed`
            self._slots = np.resize(self._slots, max(length, 2 * len(self._slots)))
