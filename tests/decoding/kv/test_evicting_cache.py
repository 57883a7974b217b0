"""The KV cache with sequences that evict: random operations against the text that every slot must hold."""

from __future__ import annotations

import random

import numpy as np
import pytest

from decoding.core import Tokens
from decoding.kv.kv_cache import KVCache
from decoding.kv.sequence import TokenSequence
from decoding.kv.slots import SlotPool


class Player:
    """Does random operations; `written` has what each slot holds: the text up to its token, and whose it is."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cache = KVCache(SlotPool(60))
        self.written: dict[int, tuple[Tokens, int | None]] = {}
        self.positions: dict[TokenSequence, list[int]] = {}  # by running sequence: the positions of its slots
        self.whole: dict[TokenSequence, int] = {}
        self.arrivals = 0

    def play(self) -> None:
        operations = [self.begin, self.compute, self.compute, self.insert, self.evict, self.end]
        self.rng.choice(operations)()
        self.cache.assert_invariants(self.positions)
        for sequence, positions in self.positions.items():
            assert sequence.num_slots == len(positions)
            assert sequence.num_slots + sequence.num_evicted == sequence.num_computed
            for slot, position in zip(sequence.slots.tolist(), positions, strict=True):
                text, owner = self.written[slot]
                assert text == tuple(sequence.tokens[: position + 1])
                # what was computed after an eviction is read by no other sequence
                assert owner in (None, sequence.arrival)

    def pick(self) -> TokenSequence | None:
        return self.rng.choice(list(self.positions)) if self.positions else None

    def begin(self) -> None:
        sequence = TokenSequence(self.arrivals, tuple(self.rng.randrange(2) for _ in range(self.rng.randint(2, 14))))
        self.arrivals += 1
        self.cache.acquire(sequence, self.cache.match_prefix(sequence))
        self.positions[sequence] = list(range(sequence.num_computed))
        self.whole[sequence] = self.rng.randint(1, len(sequence.tokens))

    def compute(self) -> None:
        sequence = self.pick()
        if sequence is None or not self.cache.num_available:
            return
        if not sequence.num_uncomputed:
            sequence.append_tokens([self.rng.randrange(2)])
        count = self.rng.randint(1, min(sequence.num_uncomputed, self.cache.num_available))
        slots, begin = self.cache.allocate(count), sequence.num_computed
        sequence.append_slots(slots)
        for position, slot in enumerate(slots.tolist(), begin):
            owner = sequence.arrival if sequence.num_evicted else None
            self.written[slot] = tuple(sequence.tokens[: position + 1]), owner
            self.positions[sequence].append(position)

    def insert(self) -> None:
        sequence = self.pick()
        if sequence is not None and not sequence.num_evicted and sequence.num_computed > sequence.num_cached:
            self.cache.insert(sequence)

    def evict(self) -> None:
        sequence = self.pick()
        if sequence is None or sequence.num_computed <= self.whole[sequence]:
            return
        whole = self.whole[sequence]
        is_kept = np.array([at < whole or self.rng.random() < 0.6 for at in self.positions[sequence]])
        if is_kept.all():
            return
        others = {slot for other in self.positions if other is not sequence for slot in other.slots.tolist()}
        cached = set(self.cache.prefix_cache.all_slots().tolist())
        dropped = set(sequence.slots[~is_kept].tolist())
        held, free = self.cache.pool.num_held, self.cache.pool.num_free
        self.cache.evict(sequence, is_kept, whole)
        # those of the cache stay for others, all other ones are free now
        assert self.cache.pool.num_free - free == held - self.cache.pool.num_held == len(dropped - cached)
        assert others.isdisjoint(dropped - cached)
        self.positions[sequence] = [at for at, keep in zip(self.positions[sequence], is_kept, strict=True) if keep]

    def end(self) -> None:
        sequence = self.pick()
        if sequence is not None:
            self.rng.choice([self.cache.release, self.cache.discard])(sequence)
            assert sequence.num_slots == sequence.num_evicted == 0
            del self.positions[sequence]


@pytest.mark.parametrize("seed", range(60))
def test_slots_hold_what_their_sequences_read(seed: int) -> None:
    player = Player(seed)
    for _ in range(150):
        player.play()
    for sequence in list(player.positions):
        player.cache.release(sequence)
    player.cache.assert_invariants()
    assert player.cache.num_available == player.cache.pool.capacity  # no lock and no slot is left behind


def test_a_slot_is_free_when_the_last_sequence_drops_it() -> None:
    cache = KVCache(SlotPool(20))
    first, second = (TokenSequence(arrival, tuple(range(8))) for arrival in range(2))
    cache.acquire(first, cache.match_prefix(first))
    first.append_slots(cache.allocate(7))
    cache.insert(first)
    cache.acquire(second, cache.match_prefix(second))
    assert second.num_cached == 7
    two = np.array([True, True, *[False] * 5])
    cache.evict(first, two, 2)
    # the sibling reads all seven
    assert (first.num_slots, cache.num_pinned, cache.pool.num_held) == (2, 7, 7)
    cache.evict(second, two, 2)
    # no sequence reads the five: the cache keeps them as long as there is room
    assert (second.num_slots, cache.num_pinned, cache.pool.num_held) == (2, 2, 7)
    cache.allocate(cache.num_available)
    assert cache.num_available == 0
    assert len(cache.prefix_cache.all_slots()) == 2


def test_a_prefix_with_holes_is_never_cached() -> None:
    cache = KVCache(SlotPool(20))
    sequence = TokenSequence(0, tuple(range(6)))
    cache.acquire(sequence, cache.match_prefix(sequence))
    sequence.append_slots(cache.allocate(5))
    cache.evict(sequence, np.array([True, False, True, True, True]), 1)
    with pytest.raises(AssertionError, match="holes"):
        cache.insert(sequence)
    cache.release(sequence)
    assert cache.prefix_cache.num_tokens == 0
    assert cache.pool.num_held == 0
