"""Tracks the tokens of one sequence and the KV slots they occupy.

tokens  [0, len)                     committed: the prefix and all tokens generated after it
        [0, num_computed)            KV was computed
slots   [0, num_slots)               KV is present, in order of position; the sequence may have evicted some
        [0, num_cached)              ... in slots of the prefix cache, pinned through `prefix_node`: a whole prefix,
                                     which attention may read once for several sequences
        num_borrowed more            ... in slots of the prefix cache, pinned through `borrowed_node`, of a prefix that
                                     is no longer whole for this sequence; others read all of it
        the rest                     ... in slots of this sequence alone
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

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
        self.borrowed_node: RadixNode | None = None
        self.num_computed = 0
        self.num_cached = 0
        self.num_borrowed = 0
        self.num_evicted = 0
        self.slots_version = 0
        """Rises when slots after the cached prefix change in another way than by new ones at their end."""
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
    def num_feedable(self) -> int:
        """Uncomputed tokens that one round may feed: those that see the same KV before them."""
        return self.num_uncomputed

    @property
    def num_slots(self) -> int:
        """Tokens with KV: those that were computed, less those that this sequence has evicted."""
        return self.num_computed - self.num_evicted

    @property
    def num_shared(self) -> int:
        """The first slots, which belong to the prefix cache."""
        return self.num_cached + self.num_borrowed

    @property
    def slots(self) -> Slots:
        """A view of the slots, in order of position."""
        # not to be kept: `_reserve_slots` may replace the array
        return self._slots[: self.num_slots]

    def token_array(self, length: int | None = None) -> TokenArray:
        """Returns the first `length` committed ids (all of them by default) as an array."""
        return np.array(self.tokens[:length], dtype=np.int64)

    def read_cached(self, node: RadixNode, slots: Slots, begin: int = 0) -> None:
        """Reads tokens from the cache's slots, too: those from `begin` on. *Mutates*; the caller has locked `node`."""
        self.prefix_node = node
        self.num_cached = end = begin + len(slots)
        self.num_computed = max(self.num_computed, end)
        self.slots_version += 1
        self._reserve_slots(self.num_computed)
        # also over slots that `insert` has just freed: only the cache's are locked
        self._slots[begin:end] = slots

    def append_slots(self, slots: Slots) -> None:
        """Records that the KV of the next `len(slots)` tokens is in `slots`, which are this sequence's. *Mutates*."""
        begin, num = self.num_computed - self.num_evicted, len(slots)
        self._reserve_slots(begin + num)
        self._slots[begin : begin + num] = slots
        self.num_computed += num

    def view_slots(self, first: int, next_slots: Slots) -> Slots:
        """Returns a view of the slots from `first` on, with `next_slots` for tokens whose KV is not there yet.

        Valid until the next method that mutates. `num_computed` stays: those slots need not become this sequence's.
        """
        begin = self.num_computed - self.num_evicted
        end = begin + len(next_slots)
        self._reserve_slots(end)
        self._slots[begin:end] = next_slots
        return self._slots[first:end]

    def borrow_cached(self, node: RadixNode, length: int) -> None:
        """Reads only the first `length` tokens as a shared prefix, and the other cached ones alone. *Mutates*.

        The caller has locked `node`, where that prefix ends; the lock of the longer one is now that of `borrowed_node`.
        """
        self.borrowed_node, self.prefix_node = self.prefix_node, node
        self.num_borrowed, self.num_cached = self.num_cached - length, length
        self.slots_version += 1

    def drop_slots(self, is_kept: npt.NDArray[np.bool_]) -> Slots:
        """Removes slots; returns those of them that are this sequence's, which the caller frees. *Mutates*.

        is_kept  bool `[num_slots]`; true for the first `num_cached`
        """
        slots = self.slots
        assert is_kept[: self.num_cached].all(), "a shared prefix must stay whole"
        dropped = slots[self.num_shared :][~is_kept[self.num_shared :]]
        kept_slots = slots[is_kept]
        self.num_borrowed = int(is_kept[self.num_cached : self.num_shared].sum())
        self.num_evicted += len(slots) - len(kept_slots)
        self._slots[: len(kept_slots)] = kept_slots
        self.slots_version += 1
        return dropped

    def clear_slots(self) -> None:
        """Removes all KV; the caller has already freed the slots and released the lock. *Mutates*."""
        self.prefix_node = self.borrowed_node = None
        self.num_computed = self.num_cached = self.num_borrowed = self.num_evicted = 0
        self.slots_version += 1

    def append_tokens(self, tokens: Sequence[int]) -> None:
        """Commits more tokens. *Mutates*."""
        self.tokens.extend(tokens)

    def _reserve_slots(self, length: int) -> None:
        if length > len(self._slots):
            # doubling: appending one token a round must not copy the array each time
            # the new tail repeats old slots; nothing reads beyond `num_slots`
            self._slots = np.resize(self._slots, max(length, 2 * len(self._slots)))
