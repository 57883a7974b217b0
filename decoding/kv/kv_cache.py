"""Accounts for every KV slot: free, of the prefix cache, or of one running sequence."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from decoding.kv.prefix_cache import PrefixCache, PrefixMatch
from decoding.kv.sequence import TokenSequence
from decoding.kv.slots import SlotPool, Slots


class KVCache:
    """Slot pool and prefix cache as one account.

    A sequence acquires the cached prefix of its tokens, allocates slots for the others, inserts what it has computed
    into the cache, and is released at its end. It may evict KV in between: for itself alone, since others may need it.
    """

    def __init__(self, pool: SlotPool) -> None:
        self.pool = pool
        self.prefix_cache = PrefixCache(pool)

    @property
    def num_available(self) -> int:
        """Slots that can be allocated now: free ones and those of prefixes without a lock."""
        return self.pool.num_free + self.prefix_cache.num_evictable

    @property
    def num_pinned(self) -> int:
        """Slots that running sequences hold or read, each counted once."""
        return self.pool.num_held - self.prefix_cache.num_evictable

    def match_prefix(self, sequence: TokenSequence) -> PrefixMatch:
        """Returns the longest cached prefix that the sequence may use. *Mutates* only the cache's shape and recency."""
        return self.prefix_cache.match_prefix(sequence.token_array(sequence.max_cached))

    def acquire(self, sequence: TokenSequence, match: PrefixMatch) -> None:
        """Starts `sequence` from a match, locked until `insert` moves the lock or `release` or `discard` ends it."""
        self.prefix_cache.lock_path(match.node)
        sequence.read_cached(match.node, match.slots)

    def allocate(self, count: int) -> Slots:
        """Returns free slots, evicting unlocked prefixes for them. Raises OutOfSlots beyond `num_available`."""
        # evict no more than needed: every evicted token may have to be computed again
        if count > self.pool.num_free:
            self.prefix_cache.evict_tokens(count - self.pool.num_free)
        return self.pool.allocate(count)

    def insert(self, sequence: TokenSequence) -> None:
        """Makes all computed KV of `sequence` a cached prefix, which the sequence reads from then on.

        [0, num_cached)         in the cache already
        [num_cached, known)     computed by another sequence too: our slots are freed and we read the cache's
        [known, num_computed)   new: the cache takes over our slots
        """
        assert not sequence.num_evicted, "a prefix with holes must not be cached"
        begin = sequence.num_cached
        new_tokens = np.array(sequence.tokens[begin : sequence.num_computed], dtype=np.int64)
        private = sequence.slots[begin:].copy()
        # the walk begins where the sequence's prefix ends: of a short step after a long prefix it is most of the work
        match = self.prefix_cache.insert_prefix(new_tokens, private, sequence.prefix_node)
        self.pool.free(private[private != match.slots])  # equal where the cache took ours
        self.prefix_cache.lock_path(match.node, sequence.prefix_node)
        sequence.read_cached(match.node, match.slots, begin)

    def release(self, sequence: TokenSequence) -> None:
        """Ends a sequence; its KV stays cached until its slots are needed."""
        # insert first: discard frees everything that is not in the cache. Not after an eviction: what was computed
        # then did not see all tokens before it.
        if sequence.num_computed > sequence.num_cached and not sequence.num_evicted:
            self.insert(sequence)
        self.discard(sequence)

    def discard(self, sequence: TokenSequence) -> None:
        """Ends a sequence and frees its slots outside the cache."""
        # the first slots are the cache's and stay; a sequence that was never admitted has no node
        if sequence.prefix_node is not None:
            self.pool.free(sequence.slots[sequence.num_shared :])
            self.prefix_cache.unlock_path(sequence.prefix_node)
            self._end_borrowing(sequence)
        sequence.clear_slots()

    def evict(self, sequence: TokenSequence, is_kept: npt.NDArray[np.bool_], num_whole: int) -> None:
        """Evicts KV of one sequence; a slot is free once no other holds it.

        is_kept    bool `[num_slots]`
        num_whole  the first tokens, all of which are kept

        Slots of the cache stay there, for other sequences: this one unlocks them when it reads none of them any more.
        """
        if sequence.num_cached > num_whole:
            # attention reads a cached prefix as a whole, so this one is read alone from where it has holes
            match = self.prefix_cache.match_prefix(sequence.token_array(num_whole))
            assert len(match) == num_whole
            self.prefix_cache.lock_path(match.node)
            sequence.borrow_cached(match.node, num_whole)
        self.pool.free(sequence.drop_slots(is_kept))
        if not sequence.num_borrowed:
            self._end_borrowing(sequence)

    def _end_borrowing(self, sequence: TokenSequence) -> None:
        node, sequence.borrowed_node = sequence.borrowed_node, None
        if node is not None:
            self.prefix_cache.unlock_path(node)

    def discard_all(self, sequences: Iterable[TokenSequence]) -> None:
        """Discards all sequences after a failed round and frees every slot outside the cache.

        A failed round may have allocated slots that no sequence lists, so only the cache is trusted.
        """
        self.prefix_cache.unlock_all()
        self.pool.free_all_except(self.prefix_cache.all_slots())
        for sequence in sequences:
            sequence.clear_slots()

    def assert_invariants(self, running: Iterable[TokenSequence] = ()) -> None:
        """Asserts that pool, cache and the running sequences agree on every slot."""
        self.pool.assert_invariants()
        self.prefix_cache.assert_invariants()
        locks = private = 0
        for sequence in running:
            assert sequence.prefix_node is not None
            assert sequence.prefix_node.end == sequence.num_cached
            assert sequence.num_shared <= sequence.num_slots
            cached = self.prefix_cache.match_prefix(sequence.token_array(sequence.num_cached))
            assert np.array_equal(cached.slots, sequence.slots[: sequence.num_cached]), "cached slots moved"
            private += sequence.num_slots - sequence.num_shared
            locks += sequence.num_cached > 0  # a path of length 0 locks no child of the root
            assert (sequence.borrowed_node is None) == (sequence.num_borrowed == 0)
            if sequence.borrowed_node is not None:
                locks += 1
                readable = np.concatenate([node.slots for node in sequence.borrowed_node.path_from_root()])
                borrowed = sequence.slots[sequence.num_cached : sequence.num_shared]
                assert np.isin(borrowed, readable).all(), "a borrowed slot is not locked"
        assert private + self.prefix_cache.num_tokens == self.pool.num_held, "an allocated slot has no holder"
        root_locks = sum(child.num_locks for child in self.prefix_cache.root.children.values())
        assert root_locks == locks, "a lock outlived its sequence"
