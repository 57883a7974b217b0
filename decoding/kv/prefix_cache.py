"""Which prefixes already have KV: a radix tree over token ids, with locks and least-recently-used eviction.

Every node owns the pages of a run of tokens. A lock on a node pins the whole path above it, so

    locked nodes      pages a running sequence reads; never evicted
    unlocked nodes    KV kept in case somebody asks again; `evictable` counts their tokens
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoding.kv.slots import NO_PAGES, PagePool, Pages

TokenArray = npt.NDArray[np.int64]


class Node:
    """A run of tokens after its parent's. `end` is the length of the prefix from the root to its last token."""

    __slots__ = ("children", "end", "locks", "offered", "pages", "parent", "stamp", "tokens")

    def __init__(self, tokens: TokenArray, pages: Pages, parent: Node | None, stamp: int) -> None:
        self.tokens, self.pages, self.parent, self.stamp = tokens, pages, parent, stamp
        self.end: int = (parent.end if parent else 0) + len(tokens)
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.offered = False  # has an entry in the eviction queue

    def path(self) -> list[Node]:
        """Nodes from the first below the root down to this one."""
        node, path = self, []
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]


@dataclass(frozen=True)
class Match:
    """The longest cached prefix: its last node and the pages of all its tokens."""

    node: Node
    pages: Pages

    def __len__(self) -> int:
        return len(self.pages)


def common_length(a: TokenArray, b: TokenArray) -> int:
    """How many leading ids two arrays share."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


class PrefixCache:
    """Prefix -> pages. Owns the pages of its nodes and gives them back to `pool` when it evicts."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._clock = 0
        self.root = Node(np.empty(0, dtype=np.int64), NO_PAGES, None, 0)
        self.tokens = 0
        self.evictable = 0
        self.evicted = 0
        self._idle: list[tuple[int, int, Node]] = []  # heap of (stamp, tie, leaf)
        self._ties = 0

    def match(self, tokens: TokenArray) -> Match:
        """The longest cached prefix of `tokens`. *Mutates*: splits a node where the match ends, and touches the path.

        Valid until the next eviction unless the node is locked.
        """
        node, _ = self._descend(tokens)
        return Match(node, np.concatenate([NO_PAGES, *(step.pages for step in node.path())]))

    def insert(self, tokens: TokenArray, pages: Pages) -> Match:
        """Makes `tokens` a cached prefix; the result covers all of them. *Takes ownership* of `pages[known:]`.

        [0, known)        already cached; the result names the cache's pages, `pages[:known]` stay the caller's
        [known, len)      new; the caller's pages are now the cache's
        """
        assert len(tokens) == len(pages)
        node, known = self._descend(tokens)
        if known < len(tokens):
            # Copies: the caller's arrays are views of buffers that live on.
            node = self._attach(node, tokens[known:].copy(), pages[known:].copy())
        return Match(node, np.concatenate([NO_PAGES, *(step.pages for step in node.path())]))

    def lock(self, node: Node) -> None:
        """Pins `node` and everything above it. Pair with `unlock`."""
        for step in node.path():
            if step.locks == 0:
                self.evictable -= len(step.tokens)
            step.locks += 1

    def unlock(self, node: Node) -> None:
        """Undoes one `lock`."""
        for step in node.path():
            assert step.locks > 0, "unlock without lock"
            step.locks -= 1
            if step.locks == 0:
                self.evictable += len(step.tokens)
                self._offer(step)

    def evict(self, count: int) -> int:
        """Frees up to `count` pages, least recently used first, from the tails of idle leaves; how many it freed."""
        freed = 0
        while freed < count and self._idle:
            stamp, _, leaf = heapq.heappop(self._idle)
            leaf.offered = False
            if leaf.locks or leaf.children or not len(leaf.tokens):
                continue
            if leaf.stamp != stamp:  # used since it was offered
                self._offer(leaf)
                continue
            freed += self._trim(leaf, count - freed)
        return freed

    def unlock_all(self) -> None:
        """Forgets every lock: for an engine that drops all its sequences at once."""
        for node in self.nodes():
            node.locks = 0
            self._offer(node)
        self.evictable = self.tokens

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def pages(self) -> Pages:
        """All pages the cache owns."""
        return np.concatenate([NO_PAGES, *(node.pages for node in self.nodes())])

    def _descend(self, tokens: TokenArray) -> tuple[Node, int]:
        self._clock += 1
        node, at = self.root, 0
        while at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                break
            same = common_length(child.tokens, tokens[at:])
            node = child if same == len(child.tokens) else self._split(child, same)
            node.stamp = self._clock
            at += same
            if node is not child:
                break
        return node, at

    def _attach(self, parent: Node, tokens: TokenArray, pages: Pages) -> Node:
        node = Node(tokens, pages, parent, self._clock)
        parent.children[int(tokens[0])] = node
        self.tokens += len(tokens)
        self.evictable += len(tokens)
        self._offer(node)
        return node

    def _split(self, node: Node, at: int) -> Node:
        """A new parent holding the first `at` tokens of `node`. The old object keeps the tail: locks know it."""
        assert node.parent is not None
        assert 0 < at < len(node.tokens)
        upper = Node(node.tokens[:at], node.pages[:at], node.parent, node.stamp)
        upper.locks = node.locks
        node.parent.children[int(upper.tokens[0])] = upper
        node.tokens, node.pages, node.parent = node.tokens[at:], node.pages[at:], upper
        upper.children[int(node.tokens[0])] = node
        return upper

    def _offer(self, node: Node) -> None:
        # One entry per node: what is outdated by the time it is popped is offered again with its new stamp.
        if not (node.locks or node.children or node.offered):
            node.offered = True
            self._ties += 1
            heapq.heappush(self._idle, (node.stamp, self._ties, node))

    def _trim(self, leaf: Node, count: int) -> int:
        """Removes up to `count` tokens from the tail of an unlocked leaf, the leaf itself with its last one."""
        kept = max(0, len(leaf.tokens) - count)
        gone = leaf.pages[kept:]
        first = int(leaf.tokens[0])
        leaf.tokens, leaf.pages, leaf.end = leaf.tokens[:kept], leaf.pages[:kept], leaf.end - len(gone)
        self._pool.give(gone)
        self.tokens -= len(gone)
        self.evictable -= len(gone)
        self.evicted += len(gone)
        if kept:
            self._offer(leaf)
        elif leaf.parent is not None:
            del leaf.parent.children[first]
            if leaf.parent is not self.root:
                self._offer(leaf.parent)
        return len(gone)

    def check(self) -> None:
        """Asserts links, lengths, locks and counts; O(tokens)."""
        tokens = evictable = 0
        for node in self.nodes():
            parent = node.parent
            assert parent is not None
            assert parent.children[int(node.tokens[0])] is node
            assert len(node.tokens) == len(node.pages) > 0
            assert node.end == parent.end + len(node.tokens)
            assert node.locks >= sum(child.locks for child in node.children.values())
            assert node.locks or node.children or node.offered, "an idle leaf nobody would evict"
            tokens += len(node.tokens)
            evictable += 0 if node.locks else len(node.tokens)
        assert (tokens, evictable) == (self.tokens, self.evictable)
        owned = self.pages()
        assert len(np.unique(owned)) == len(owned) == tokens, "a page is in two places"
