"""Finds prefixes whose KV is present: a radix tree over token ids, with locks and least-recently-used eviction.

Every node holds the slots of a run of tokens. A lock on a node pins the whole path above it, so

    locked nodes      slots that a running sequence reads; never evicted
    unlocked nodes    KV for later requests with this prefix; `num_evictable` counts their tokens
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoding.kv.slots import NO_SLOTS, SlotPool, Slots

TokenArray = npt.NDArray[np.int64]


class RadixNode:
    """A run of tokens after its parent's; `end` is the length of the prefix from the root to its last token."""

    __slots__ = ("children", "end", "is_queued", "last_used", "num_locks", "parent", "slots", "tokens")

    def __init__(self, tokens: TokenArray, slots: Slots, parent: RadixNode | None, last_used: int) -> None:
        self.tokens, self.slots, self.parent, self.last_used = tokens, slots, parent, last_used
        self.end: int = (parent.end if parent else 0) + len(tokens)
        self.children: dict[int, RadixNode] = {}
        self.num_locks = 0
        self.is_queued = False  # has an entry in the eviction queue

    def path_from_root(self, after: RadixNode | None = None) -> list[RadixNode]:
        """Returns the nodes from the first below the root, or below `after`, down to this one."""
        node, path = self, []
        while node.parent is not None and node is not after:
            path.append(node)
            node = node.parent
        return path[::-1]


@dataclass(frozen=True)
class PrefixMatch:
    """The longest cached prefix: its last node and the slots of all its tokens."""

    node: RadixNode
    slots: Slots

    def __len__(self) -> int:
        return len(self.slots)


def common_length(a: TokenArray, b: TokenArray) -> int:
    """Returns the number of leading ids that two arrays share."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    # argmax is 0 also where nothing differs, hence the test of `differ[first]`
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


class PrefixCache:
    """Maps prefixes to slots. Holds the slots of its nodes and frees them in `pool` when it evicts."""

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._clock = 0
        self.root = RadixNode(np.empty(0, dtype=np.int64), NO_SLOTS, None, 0)
        self.num_tokens = 0
        self.num_evictable = 0
        self.num_evicted = 0
        self._eviction_queue: list[tuple[int, int, RadixNode]] = []  # heap of (last_used, tie, leaf)
        self._ties = 0

    def match_prefix(self, tokens: TokenArray) -> PrefixMatch:
        """Returns the longest cached prefix of `tokens`.

        *Mutates*: splits a node where the match ends and marks the path as used. The result is valid until the next
        eviction, or as long as the node is locked.
        """
        node, _ = self._walk_down(self.root, tokens)
        return PrefixMatch(node, _join_slots(node.path_from_root()))

    def insert_prefix(self, tokens: TokenArray, slots: Slots, after: RadixNode | None = None) -> PrefixMatch:
        """Makes `tokens` after the prefix of a locked node cached, too, by default after none; returns what is cached
        for them. *Takes ownership* of `slots[known:]`.

        [0, known)        already cached; the result has the cache's slots, `slots[:known]` stay the caller's
        [known, len)      new; the caller's slots are now the cache's
        """
        assert len(tokens) == len(slots)
        node, known = self._walk_down(after or self.root, tokens)
        if known < len(tokens):
            # Copies: the caller's arrays are views of buffers that it overwrites later.
            node = self._attach_child(node, tokens[known:].copy(), slots[known:].copy())
        return PrefixMatch(node, _join_slots(node.path_from_root(after)))

    def lock_path(self, node: RadixNode, after: RadixNode | None = None) -> None:
        """Pins `node` and all above it until `unlock_path`; a lock of `after`, above it, becomes one of `node`."""
        for step in node.path_from_root(after):
            # only the first lock of a node changes the count
            if step.num_locks == 0:
                self.num_evictable -= len(step.tokens)
            step.num_locks += 1

    def unlock_path(self, node: RadixNode) -> None:
        """Ends one `lock_path` of this node."""
        for step in node.path_from_root():
            assert step.num_locks > 0, "unlock without lock"
            step.num_locks -= 1  # the path is that of now: splits since the lock copied its count
            if step.num_locks == 0:
                self.num_evictable += len(step.tokens)
                self._queue_for_eviction(step)

    def evict_tokens(self, count: int) -> int:
        """Frees up to `count` slots, least recently used first, from the tails of unlocked leaves; returns how many."""
        freed = 0
        while freed < count and self._eviction_queue:
            last_used, _, leaf = heapq.heappop(self._eviction_queue)
            leaf.is_queued = False
            # outdated entries: locked or extended since, or already trimmed to nothing
            if leaf.num_locks or leaf.children or not len(leaf.tokens):
                continue
            if leaf.last_used != last_used:  # used since it was queued
                self._queue_for_eviction(leaf)
                continue
            freed += self._trim_leaf(leaf, count - freed)
        return freed

    def unlock_all(self) -> None:
        """Removes every lock, for an engine that discards all its sequences at once."""
        for node in self.iter_nodes():
            node.num_locks = 0
            self._queue_for_eviction(node)
        self.num_evictable = self.num_tokens

    def iter_nodes(self) -> Iterator[RadixNode]:
        """Yields every node but the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def all_slots(self) -> Slots:
        """Returns all slots that the cache holds."""
        return np.concatenate([NO_SLOTS, *(node.slots for node in self.iter_nodes())])

    def _walk_down(self, node: RadixNode, tokens: TokenArray) -> tuple[RadixNode, int]:
        """Returns the last node along `tokens` from `node` on, and how many of them it covers."""
        self._clock += 1
        at, used = 0, node
        while used.parent is not None:
            used.last_used, used = self._clock, used.parent
        while at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                break
            same = common_length(child.tokens, tokens[at:])
            node = child if same == len(child.tokens) else self._split_node(child, same)
            node.last_used = self._clock
            at += same
            if node is not child:  # the match ends inside the child, which was split there
                break
        return node, at

    def _attach_child(self, parent: RadixNode, tokens: TokenArray, slots: Slots) -> RadixNode:
        node = RadixNode(tokens, slots, parent, self._clock)
        parent.children[int(tokens[0])] = node
        self.num_tokens += len(tokens)
        # evictable until the caller locks it: nothing may be allocated before that
        self.num_evictable += len(tokens)
        self._queue_for_eviction(node)
        return node

    def _split_node(self, node: RadixNode, at: int) -> RadixNode:
        """Inserts a parent with the first `at` tokens of `node`; the old object keeps the tail: locks refer to it."""
        assert node.parent is not None
        assert 0 < at < len(node.tokens)
        upper = RadixNode(node.tokens[:at], node.slots[:at], node.parent, node.last_used)
        upper.num_locks = node.num_locks  # every lock below passes through the new parent too
        node.parent.children[int(upper.tokens[0])] = upper
        node.tokens, node.slots, node.parent = node.tokens[at:], node.slots[at:], upper
        # `node.end` stays: it counts from the root, and the tail ends where it did
        upper.children[int(node.tokens[0])] = node
        return upper

    def _queue_for_eviction(self, node: RadixNode) -> None:
        # One entry per node: an outdated entry is queued again with its new time when it is popped.
        if not (node.num_locks or node.children or node.is_queued):
            node.is_queued = True
            self._ties += 1
            heapq.heappush(self._eviction_queue, (node.last_used, self._ties, node))

    def _trim_leaf(self, leaf: RadixNode, count: int) -> int:
        """Removes up to `count` tokens from the tail of an unlocked leaf, and the leaf with its last one."""
        num_left = max(0, len(leaf.tokens) - count)
        freed = leaf.slots[num_left:]
        # before the cut: the key of this leaf in its parent
        first = int(leaf.tokens[0])
        leaf.tokens, leaf.slots, leaf.end = leaf.tokens[:num_left], leaf.slots[:num_left], leaf.end - len(freed)
        self._pool.free(freed)
        self.num_tokens -= len(freed)
        self.num_evictable -= len(freed)
        self.num_evicted += len(freed)
        if num_left:
            self._queue_for_eviction(leaf)
        elif leaf.parent is not None:
            del leaf.parent.children[first]
            # without this child the parent may be a leaf
            if leaf.parent is not self.root:
                self._queue_for_eviction(leaf.parent)
        return len(freed)

    def assert_invariants(self) -> None:
        """Asserts links, lengths, locks and counts; O(tokens)."""
        tokens = evictable = 0
        for node in self.iter_nodes():
            parent = node.parent
            assert parent is not None
            assert parent.children[int(node.tokens[0])] is node
            assert len(node.tokens) == len(node.slots) > 0
            assert node.end == parent.end + len(node.tokens)
            assert node.num_locks >= sum(child.num_locks for child in node.children.values())
            assert node.num_locks or node.children or node.is_queued, "an unlocked leaf is not queued for eviction"
            tokens += len(node.tokens)
            evictable += 0 if node.num_locks else len(node.tokens)
        assert (tokens, evictable) == (self.num_tokens, self.num_evictable)
        slots = self.all_slots()
        assert len(np.unique(slots)) == len(slots) == tokens, "a slot is in two places"


def _join_slots(path: Sequence[RadixNode]) -> Slots:
    return np.concatenate([NO_SLOTS, *(node.slots for node in path)])
