"""Allocates KV slots. A slot holds the K and V of one token; slot numbers only, no tensors.

A search forks at any token and a verified draft keeps some tokens and rejects others. With pages of one token sharing
is exact, a fork copies nothing and a rejected token frees its slot. Larger pages would save table space, which does
not matter at the sizes that this engine runs.

Slot 0 is scratch: padding reads it, and no sequence holds it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from decoding.validation import MAX_INT, require_count

Slots = npt.NDArray[np.int64]
SCRATCH_SLOT = 0
NO_SLOTS: Slots = np.empty(0, dtype=np.int64)


def pad_slots(lists: Sequence[Slots]) -> Slots:
    """Returns the lists as `[N, longest]`, filled up with the scratch slot.

    >>> pad_slots([np.array([5, 6]), np.array([7])]).tolist()
    [[5, 6], [7, 0]]
    """
    padded: Slots = np.full((len(lists), max(map(len, lists))), SCRATCH_SLOT, dtype=np.int64)
    for row, slots in zip(padded, lists, strict=True):
        row[: len(slots)] = slots
    return padded


class OutOfSlots(RuntimeError):
    """Raised when more slots are allocated than are free. The scheduler's arithmetic makes this impossible."""


class SlotPool:
    """Slot numbers 1..capacity. Allocating and freeing copy one slice, whatever the number of slots.

    >>> pool = SlotPool(4)
    >>> slots = pool.allocate(3); slots.tolist(), pool.num_free
    ([1, 2, 3], 1)
    >>> pool.free(slots[1:]); pool.num_free
    3
    """

    def __init__(self, capacity: int) -> None:
        require_count("capacity", capacity, at_least=1, at_most=MAX_INT)
        self.capacity = capacity
        self._is_held = np.zeros(capacity + 1, dtype=bool)
        self._rebuild_free_list()

    @classmethod
    def from_budget(cls, budget_bytes: int, bytes_per_token: int) -> SlotPool:
        """Returns a pool of as many slots as fit in the budget, scratch included. Raises ValueError if none does."""
        require_count("kv_bytes", budget_bytes, at_least=1, at_most=MAX_INT)
        # - 1: scratch has KV in the pool too
        capacity = budget_bytes // bytes_per_token - 1
        if capacity < 1:
            raise ValueError(
                f"a KV budget of {budget_bytes:,} bytes holds no token: one token takes {bytes_per_token:,} bytes "
                "and one slot is scratch"
            )
        return cls(int(capacity))

    def _rebuild_free_list(self) -> None:
        # Allocated from the end: descending order here makes fresh runs ascending and contiguous,
        # and a contiguous prefix is read in place by attention instead of gathered. [:0:-1] leaves out scratch.
        free: Slots = np.flatnonzero(~self._is_held)[:0:-1].astype(np.int64)
        self.num_free = len(free)
        # [0, num_free) free slots, [num_free, capacity) room for those that come back
        self._free_slots = np.concatenate([free, np.empty(self.capacity - len(free), dtype=np.int64)])

    @property
    def num_held(self) -> int:
        """Slots of the cache and of sequences."""
        return self.capacity - self.num_free

    def allocate(self, count: int) -> Slots:
        """Returns `count` slots, which the caller now holds. Raises OutOfSlots."""
        if count > self.num_free:
            raise OutOfSlots(f"{count} slots requested, {self.num_free} of {self.capacity} free")
        self.num_free -= count
        # reversed: the list descends, and slots of a sequence shall ascend
        slots = self._free_slots[self.num_free : self.num_free + count][::-1].copy()
        self._is_held[slots] = True
        return slots

    def free(self, slots: Slots) -> None:
        """Takes slots back. Freeing a slot twice is a broken invariant, not a caller's mistake."""
        assert np.count_nonzero(self._is_held[slots]) == len(slots), "a slot was freed twice"
        self._is_held[slots] = False
        # reversed back: the next allocation gets the same run in the same order
        self._free_slots[self.num_free : self.num_free + len(slots)] = slots[::-1]
        self.num_free += len(slots)

    def free_all_except(self, slots: Slots) -> None:
        """Frees everything except `slots`, for an engine that recovers from a failed round."""
        self._is_held[:] = False
        self._is_held[slots] = True
        self._rebuild_free_list()

    def assert_invariants(self) -> None:
        """Asserts that every slot is either free once or held, and that scratch is neither."""
        free = self._free_slots[: self.num_free]
        assert not self._is_held[SCRATCH_SLOT]
        assert (free != SCRATCH_SLOT).all()
        assert not self._is_held[free].any(), "a free slot is held"
        assert len(np.unique(free)) == self.num_free, "a slot is free twice"
        assert self.num_free + int(self._is_held.sum()) == self.capacity, "slots have leaked"
