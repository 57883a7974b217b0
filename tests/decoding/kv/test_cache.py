"""The slot pool, and prefix cache and KV cache against a dictionary that never shares."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.kv.kv_cache import KVCache
from decoding.kv.prefix_cache import PrefixCache, PrefixMatch, TokenArray, common_length
from decoding.kv.sequence import TokenSequence
from decoding.kv.slots import NO_SLOTS, OutOfSlots, SlotPool


def token_array(*tokens: int) -> TokenArray:
    return np.array(tokens, dtype=np.int64)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40))
def test_slot_pool_never_loses_or_doubles_a_slot(operations: list[tuple[bool, int]]) -> None:
    pool, held = SlotPool(16), []
    for allocates, count in operations:
        if allocates and count <= pool.num_free:
            held += pool.allocate(count).tolist()
        elif allocates:
            with pytest.raises(OutOfSlots):
                pool.allocate(count)
        else:
            back, held = held[:count], held[count:]
            pool.free(np.array(back, dtype=np.int64))
        pool.assert_invariants()
        assert len(set(held)) == len(held) == pool.num_held
        assert 0 not in held


def test_fresh_slots_of_the_pool_are_contiguous() -> None:
    pool = SlotPool(10)
    assert pool.allocate(4).tolist() == [1, 2, 3, 4]
    assert pool.allocate(6).tolist() == [5, 6, 7, 8, 9, 10]


def test_slot_freed_twice_is_an_error() -> None:
    pool = SlotPool(4)
    slots = pool.allocate(2)
    pool.free(slots)
    with pytest.raises(AssertionError, match="twice"):
        pool.free(slots)


def test_kv_budget_below_one_token_is_refused_with_numbers() -> None:
    with pytest.raises(ValueError, match=r"1,000 bytes.*4,096 bytes"):
        SlotPool.from_budget(1000, 4096)


def test_common_length_counts_equal_first_tokens() -> None:
    assert [
        common_length(token_array(1, 2, 3), other)
        for other in (token_array(), token_array(1, 2), token_array(1, 9, 3), token_array(2), token_array(1, 2, 3, 4))
    ] == [
        0,
        2,
        1,
        0,
        3,
    ]


class PrefixTable:
    """The reference: every cached prefix as a key, with the slot of its last token."""

    def __init__(self) -> None:
        self.slot_of: dict[tuple[int, ...], int] = {}

    def match_prefix(self, tokens: tuple[int, ...]) -> list[int]:
        slots = []
        for end in range(1, len(tokens) + 1):
            if tokens[:end] not in self.slot_of:
                break
            slots.append(self.slot_of[tokens[:end]])
        return slots


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_prefix_cache_equals_a_dictionary_that_never_shares(seed: int) -> None:
    rng = random.Random(seed)
    pool = SlotPool(60)
    cache, model = PrefixCache(pool), PrefixTable()
    locked: list[tuple[tuple[int, ...], PrefixMatch]] = []
    for _ in range(60):
        tokens = tuple(rng.choice((1, 1, 2)) for _ in range(rng.randint(1, 12)))
        action = rng.choice(["insert", "insert", "insert after", "match", "lock", "unlock", "evict"])
        if action == "insert" and len(tokens) <= pool.num_free:
            known = model.match_prefix(tokens)
            slots = np.concatenate([np.array(known, dtype=np.int64), pool.allocate(len(tokens) - len(known))])
            match = cache.insert_prefix(token_array(*tokens), slots)
            for end in range(len(known) + 1, len(tokens) + 1):
                model.slot_of[tokens[:end]] = int(slots[end - 1])
            assert match.slots.tolist() == slots.tolist()
        elif action == "insert after" and locked and len(tokens) <= pool.num_free:
            prefix, above = locked[at := rng.randrange(len(locked))]
            known = model.match_prefix(prefix + tokens)[len(prefix) :]
            slots = np.concatenate([np.array(known, dtype=np.int64), pool.allocate(len(tokens) - len(known))])
            match = cache.insert_prefix(token_array(*tokens), slots, above.node)
            for end in range(len(known), len(tokens)):
                model.slot_of[prefix + tokens[: end + 1]] = int(slots[end])
            assert match.slots.tolist() == slots.tolist()
            if rng.random() < 0.5:  # the lock moves down
                cache.lock_path(match.node, above.node)
                locked[at] = prefix + tokens, PrefixMatch(match.node, np.concatenate([above.slots, slots]))
        elif action == "match":
            assert cache.match_prefix(token_array(*tokens)).slots.tolist() == model.match_prefix(tokens)
        elif action == "lock":
            match = cache.match_prefix(token_array(*tokens))
            cache.lock_path(match.node)
            locked.append((tokens[: len(match)], match))
        elif action == "unlock" and locked:
            cache.unlock_path(locked.pop(rng.randrange(len(locked)))[1].node)
        elif action == "evict":
            requested, evictable, free = rng.randint(1, 20), cache.num_evictable, pool.num_free
            freed = cache.evict_tokens(requested)
            assert freed == min(requested, evictable) == pool.num_free - free
            still = set(cache.all_slots().tolist())
            model.slot_of = {key: slot for key, slot in model.slot_of.items() if slot in still}
        for tokens, match in locked:
            assert model.match_prefix(tokens) == match.slots.tolist(), "a locked prefix changed"
        assert cache.num_tokens == len(model.slot_of) == pool.num_held
        pinned = {prefix[:end] for prefix, _ in locked for end in range(1, len(prefix) + 1)}
        assert cache.num_evictable == cache.num_tokens - len(pinned)
        cache.assert_invariants()
        pool.assert_invariants()


def test_prefix_cache_evicts_least_recently_used_first_and_tails_before_heads() -> None:
    pool = SlotPool(20)
    cache = PrefixCache(pool)
    cache.insert_prefix(token_array(1, 2, 3, 4), pool.allocate(4))
    cache.insert_prefix(token_array(7, 8), pool.allocate(2))
    cache.match_prefix(token_array(1, 2, 3, 4))
    assert cache.evict_tokens(3) == 3
    assert len(cache.match_prefix(token_array(7, 8))) == 0
    assert len(cache.match_prefix(token_array(1, 2, 3, 4))) == 3


def test_insert_frees_slots_that_another_sequence_inserted_first() -> None:
    kv = KVCache(SlotPool(20))
    one, two = TokenSequence(0, (1, 2, 3, 4)), TokenSequence(1, (1, 2, 3, 9))
    for sequence in (one, two):
        kv.acquire(sequence, kv.match_prefix(sequence))
        sequence.append_slots(kv.allocate(4))
    assert kv.pool.num_held == 8
    kv.insert(one)
    kv.insert(two)
    assert kv.pool.num_held == 5
    assert one.slots[:3].tolist() == two.slots[:3].tolist()
    kv.assert_invariants([one, two])
    kv.release(one)
    kv.discard(two)
    kv.assert_invariants()
    assert kv.num_pinned == 0
    assert kv.prefix_cache.num_tokens == 5


def test_recovery_after_a_failed_round_keeps_the_prefix_cache() -> None:
    kv = KVCache(SlotPool(20))
    one = TokenSequence(0, (1, 2, 3))
    kv.acquire(one, kv.match_prefix(one))
    one.append_slots(kv.allocate(3))
    kv.insert(one)
    kv.allocate(5)  # slots of a round that no sequence lists yet
    kv.discard_all([one])
    kv.assert_invariants()
    assert kv.pool.num_held == 3
    assert one.slots.tolist() == NO_SLOTS.tolist()
