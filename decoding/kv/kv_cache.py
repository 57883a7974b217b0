"""Who holds which page: sequences borrow from the prefix cache, own what they add, and publish it for others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from decoding.kv.prefix_cache import Match, PrefixCache
from decoding.kv.slots import PagePool, Pages
from decoding.sequence import Sequence


class SharedKV:
    """The pool and the cache as one account. Every page is free, the cache's, or one sequence's own."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.cache = PrefixCache(pool)

    @property
    def available(self) -> int:
        """Pages that can be had at once: free ones and those of idle prefixes."""
        return self.pool.free + self.cache.evictable

    @property
    def pinned(self) -> int:
        """Pages running sequences hold or read, each counted once."""
        return self.pool.held - self.cache.evictable

    def find(self, sequence: Sequence) -> Match:
        """The longest cached prefix the sequence may use. *Mutates* only the cache's shape and recency."""
        return self.cache.match(sequence.ids(sequence.reusable))

    def adopt(self, sequence: Sequence, match: Match) -> None:
        """Starts `sequence` from a match, locked until `publish` moves the lock or `release`/`drop` undoes it."""
        self.cache.lock(match.node)
        sequence.borrow(match.node, match.pages)

    def take(self, count: int) -> Pages:
        """Fresh pages, evicting idle prefixes if it must. Raises OutOfPages beyond `available`."""
        if count > self.pool.free:
            self.cache.evict(count - self.pool.free)
        return self.pool.take(count)

    def publish(self, sequence: Sequence) -> None:
        """Makes all resident KV of `sequence` a cached prefix that it goes on reading.

        [0, borrowed)        the cache's already
        [borrowed, known)    computed twice, by us and by another: ours go back, we read theirs
        [known, resident)    new: the cache takes our pages
        """
        own = sequence.pages[sequence.borrowed :].copy()
        match = self.cache.insert(sequence.ids(sequence.resident), sequence.pages)
        theirs = match.pages[sequence.borrowed :]
        self.pool.give(own[own != theirs])
        self.cache.lock(match.node)
        if sequence.node is not None:
            self.cache.unlock(sequence.node)
        sequence.borrow(match.node, match.pages)

    def release(self, sequence: Sequence) -> None:
        """Ends a sequence's hold; its KV stays cached until somebody needs the room."""
        if sequence.resident > sequence.borrowed:
            self.publish(sequence)
        self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Ends a sequence's hold and frees its own pages."""
        if sequence.node is not None:
            self.pool.give(sequence.pages[sequence.borrowed :])
            self.cache.unlock(sequence.node)
        sequence.forget_pages()

    def recover(self, sequences: Iterable[Sequence]) -> None:
        """Drops every sequence at once, trusting only the cache: for a round that broke half-way."""
        self.cache.unlock_all()
        self.pool.keep_only(self.cache.pages())
        for sequence in sequences:
            sequence.forget_pages()

    def check(self, running: Iterable[Sequence] = ()) -> None:
        """Asserts that pool, cache and the running sequences agree on every page."""
        self.pool.check()
        self.cache.check()
        locks = 0
        own = 0
        for sequence in running:
            assert sequence.node is not None
            assert sequence.node.end == sequence.borrowed <= sequence.resident
            cached = self.cache.match(sequence.ids(sequence.borrowed))
            assert np.array_equal(cached.pages, sequence.pages[: sequence.borrowed]), "borrowed pages moved"
            own += sequence.resident - sequence.borrowed
            locks += sequence.borrowed > 0
        assert own + self.cache.tokens == self.pool.held, "a held page has no holder"
        assert sum(child.locks for child in self.cache.root.children.values()) == locks, "a lock outlived its sequence"
