"""Cache and pages against a dictionary that never shares; and the page pool alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.kv.kv_cache import SharedKV
from decoding.kv.prefix_cache import Match, PrefixCache, common_length
from decoding.kv.slots import NO_PAGES, OutOfPages, PagePool
from decoding.sequence import Sequence


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40))
def test_pool_never_loses_or_doubles_a_page(operations: list[tuple[bool, int]]) -> None:
    pool, held = PagePool(16), []
    for take, count in operations:
        if take and count <= pool.free:
            held += pool.take(count).tolist()
        elif take:
            with pytest.raises(OutOfPages):
                pool.take(count)
        else:
            back, held = held[:count], held[count:]
            pool.give(np.array(back, dtype=np.int64))
        pool.check()
        assert len(set(held)) == len(held) == pool.held
        assert 0 not in held


def test_fresh_pages_are_contiguous() -> None:
    pool = PagePool(10)
    assert pool.take(4).tolist() == [1, 2, 3, 4]
    assert pool.take(6).tolist() == [5, 6, 7, 8, 9, 10]


def test_giving_twice_is_caught() -> None:
    pool = PagePool(4)
    pages = pool.take(2)
    pool.give(pages)
    with pytest.raises(AssertionError, match="twice"):
        pool.give(pages)


def test_a_budget_below_a_page_is_refused_with_numbers() -> None:
    with pytest.raises(ValueError, match=r"1,000 bytes.*4,096 bytes"):
        PagePool.of_bytes(1000, 4096)


def test_common_length() -> None:
    assert [
        common_length(ids(1, 2, 3), other) for other in (ids(), ids(1, 2), ids(1, 9, 3), ids(2), ids(1, 2, 3, 4))
    ] == [
        0,
        2,
        1,
        0,
        3,
    ]


class Model:
    """What the cache must behave like: every cached prefix spelled out, one page each."""

    def __init__(self) -> None:
        self.page_of: dict[tuple[int, ...], int] = {}

    def match(self, tokens: tuple[int, ...]) -> list[int]:
        pages = []
        for end in range(1, len(tokens) + 1):
            if tokens[:end] not in self.page_of:
                break
            pages.append(self.page_of[tokens[:end]])
        return pages


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_random_operations_equal_a_dictionary_that_never_shares(seed: int) -> None:
    rng = random.Random(seed)
    pool = PagePool(60)
    cache, model = PrefixCache(pool), Model()
    locked: list[tuple[tuple[int, ...], Match]] = []
    for _ in range(60):
        tokens = tuple(rng.choice((1, 1, 2)) for _ in range(rng.randint(1, 12)))
        action = rng.choice(["insert", "insert", "match", "lock", "unlock", "evict"])
        if action == "insert" and len(tokens) <= pool.free:
            known = model.match(tokens)
            pages = np.concatenate([np.array(known, dtype=np.int64), pool.take(len(tokens) - len(known))])
            match = cache.insert(ids(*tokens), pages)
            for end in range(len(known) + 1, len(tokens) + 1):
                model.page_of[tokens[:end]] = int(pages[end - 1])
            assert match.pages.tolist() == pages.tolist()
        elif action == "match":
            assert cache.match(ids(*tokens)).pages.tolist() == model.match(tokens)
        elif action == "lock":
            match = cache.match(ids(*tokens))
            cache.lock(match.node)
            locked.append((tokens[: len(match)], match))
        elif action == "unlock" and locked:
            cache.unlock(locked.pop(rng.randrange(len(locked)))[1].node)
        elif action == "evict":
            wanted, idle, free = rng.randint(1, 20), cache.evictable, pool.free
            freed = cache.evict(wanted)
            assert freed == min(wanted, idle) == pool.free - free
            still = set(cache.pages().tolist())
            model.page_of = {key: page for key, page in model.page_of.items() if page in still}
        for tokens, match in locked:
            assert model.match(tokens) == match.pages.tolist(), "a locked prefix changed"
        assert cache.tokens == len(model.page_of) == pool.held
        pinned = {prefix[:end] for prefix, _ in locked for end in range(1, len(prefix) + 1)}
        assert cache.evictable == cache.tokens - len(pinned)
        cache.check()
        pool.check()


def test_least_recently_used_goes_first_and_tails_before_heads() -> None:
    pool = PagePool(20)
    cache = PrefixCache(pool)
    cache.insert(ids(1, 2, 3, 4), pool.take(4))
    cache.insert(ids(7, 8), pool.take(2))
    cache.match(ids(1, 2, 3, 4))
    assert cache.evict(3) == 3
    assert len(cache.match(ids(7, 8))) == 0
    assert len(cache.match(ids(1, 2, 3, 4))) == 3


def test_publishing_what_another_published_first_frees_the_double() -> None:
    kv = SharedKV(PagePool(20))
    one, two = Sequence(0, (1, 2, 3, 4)), Sequence(1, (1, 2, 3, 9))
    for sequence in (one, two):
        kv.adopt(sequence, kv.find(sequence))
        sequence.append_pages(kv.take(4))
    assert kv.pool.held == 8
    kv.publish(one)
    kv.publish(two)
    assert kv.pool.held == 5
    assert one.pages[:3].tolist() == two.pages[:3].tolist()
    kv.check([one, two])
    kv.release(one)
    kv.drop(two)
    kv.check()
    assert kv.pinned == 0
    assert kv.cache.tokens == 5


def test_recovery_after_a_broken_round_keeps_the_cache() -> None:
    kv = SharedKV(PagePool(20))
    one = Sequence(0, (1, 2, 3))
    kv.adopt(one, kv.find(one))
    one.append_pages(kv.take(3))
    kv.publish(one)
    kv.take(5)  # a round's pages, not yet anybody's
    kv.recover([one])
    kv.check()
    assert kv.pool.held == 3
    assert one.pages.tolist() == NO_PAGES.tolist()
