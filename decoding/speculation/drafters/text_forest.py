"""Stores texts as trees of tokens, and finds every place in them that ends as a given text does.

It answers the queries of a suffix tree without one: the suffixes of a text's end are matched backwards, from the places
of its last token. So a token is stored once, in five numbers of 4 bytes and up to two slots of a hash table, where the
suffix tree of the papers has up to one node per token and depth. A query takes time for every place of the last token,
of which the newest `MOST_PLACES` count.

Texts share their beginnings: a new text that starts with appended tokens does not store or count them again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from decoding.core import Tokens
from decoding.speculation.drafters.ngram_hash_table import Int32s, Ints
from decoding.speculation.drafters.text_forest_kernels import (
    NO_NODE,
    ForestNodes,
    append_text,
    find_best_match,
    find_prefix,
    keep_texts,
    link_all,
)
from decoding.token_view import TokenView

MOST_PLACES = 1 << 14
_FEWEST_NODES = 1024


class TextName(NamedTuple):
    """Names a text: its tree, and the request that wrote it."""

    tree: Hashable
    request_id: int


@dataclass
class StoredText:
    """The last node and the length of a text, and the problem that it belongs to."""

    end: int
    length: int
    group: str


class SuffixMatch(NamedTuple):
    """The places at which a suffix of a text occurs; a draft that continues them may have `budget` tokens.

    `score` is the sum of the path probabilities of the most frequent continuation.
    """

    places: Int32s
    length: int
    budget: int
    score: float


class TextForest:
    """Texts in trees, of which any number may exist.

    >>> forest = TextForest()
    >>> for request, text in enumerate([(1, 2, 3), (1, 2, 4, 1, 2)]):
    ...     end = forest.add_text(TextName("tree", request), "problem", text)
    >>> match = forest.find_match("tree", end, longest=8, factor=1.0, offset=0.0, least=0.1)
    >>> len(forest), match.length, len(match.places)       # (1, 2) is stored once; it occurs at the end, too
    (6, 2, 2)
    """

    def __init__(self) -> None:
        self.texts: OrderedDict[TextName, StoredText] = OrderedDict()  # the first in order is the least recently used
        self.nodes = _allocate_nodes(_FEWEST_NODES, _FEWEST_NODES)
        self._roots: dict[Hashable, int] = {}
        self._count = 0
        self._limit = 0  # what may be stored without another try to make room

    def __len__(self) -> int:
        """Returns the number of stored tokens, those of removed texts too until room is made."""
        return self._count - len(self._roots)

    @property
    def num_trees(self) -> int:
        """Number of trees with texts, those of removed texts too until room is made."""
        return len(self._roots)

    @property
    def size_bytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return sum(array.nbytes for array in self.nodes)

    def add_text(self, name: TextName, group: str, tokens: Tokens | TokenView) -> int:
        """Adds the new tokens of a text; returns its last node. *Mutates*."""
        root, text = self._find_root(name.tree), self.texts.get(name)
        # A shorter text under the same name is another one: its longest known beginning is searched for.
        if text is None or text.length > len(tokens):
            known = np.array(tokens[:], dtype=np.int32)
            text = self.texts[name] = StoredText(*find_prefix(self.nodes, root, known), group)
        self.texts.move_to_end(name)
        if text.length < len(tokens):
            new_tokens = np.array(tokens[text.length :], dtype=np.int32)
            self._reserve(len(new_tokens), int(new_tokens.max()) + 1)
            text.end = int(append_text(self.nodes, self._count, root, text.end, new_tokens))
            self._count += len(new_tokens)
            text.length = len(tokens)
        return text.end

    def remove_text(self, name: TextName) -> Tokens:
        """Removes a text, whose tokens stay until room is made; returns them. *Mutates*."""
        tokens, node = list[int](), self.texts.pop(name).end
        while self.nodes.parent_N[node] >= 0:
            tokens.append(int(self.nodes.token_N[node]))
            node = int(self.nodes.parent_N[node])
        return tuple(tokens[::-1])

    def find_match(
        self, tree: Hashable, end: int, *, longest: int, factor: float, offset: float, least: float
    ) -> SuffixMatch:
        """Returns the best match in a tree of a suffix of the text that ends in `end`, which may be in another tree.

        A suffix of m <= `longest` tokens has a budget of factor * m + offset. Its score is counted along the most
        frequent continuation while the path's probability is at least `least`.
        """
        if tree not in self._roots:
            return SuffixMatch(np.empty(0, dtype=np.int32), 0, 0, 0.0)
        root, most = self._roots[tree], min(MOST_PLACES, self._count)
        match = find_best_match(self.nodes, root, end, longest, most, float(factor), float(offset), float(least))
        return SuffixMatch(*match)

    def make_room(self, limit: int, is_required: Callable[[StoredText], bool]) -> None:
        """Removes texts, least recently used first and never a required one, if tokens and texts are above `limit`.

        A quarter of the room is free afterwards, so that it is not made in every round. *Mutates*.
        """
        if len(self) + len(self.texts) <= max(limit, self._limit):
            return
        required = [name for name, text in self.texts.items() if is_required(text)]
        for name in required:
            self.texts.move_to_end(name)
        names = list(reversed(self.texts))  # the required ones first
        ends = np.array([self.texts[name].end for name in names], dtype=np.int64)
        roots = len({name.tree for name in names})
        num_kept, index_N = keep_texts(
            self.nodes.parent_N[: self._count], ends, len(required), int(0.75 * limit) + roots
        )
        for name in names[num_kept:]:
            del self.texts[name]
        self._move_nodes(index_N)
        # Required texts alone may exceed the limit: then room is made again when a third more has come.
        self._limit = int((len(self) + len(self.texts)) / 0.75)

    def _move_nodes(self, index_N: Ints) -> None:
        """Moves nodes to new indices in the same order, -1 for removed ones. *Mutates*."""
        kept_nodes = np.flatnonzero(index_N >= 0)
        old = self.nodes
        self._count = len(kept_nodes)
        self.nodes = _allocate_nodes(self._count, len(old.tally_V))
        self.nodes.token_N[: self._count] = old.token_N[kept_nodes]
        parents = old.parent_N[kept_nodes]
        self.nodes.parent_N[: self._count] = np.where(parents >= 0, index_N[parents], NO_NODE)
        self._roots = {tree: int(index_N[root]) for tree, root in self._roots.items() if index_N[root] >= 0}
        for text in self.texts.values():
            text.end = int(index_N[text.end])
        link_all(self.nodes, self._count)

    def _find_root(self, tree: Hashable) -> int:
        root = self._roots.get(tree)
        if root is None:
            self._reserve(1, 1)
            root = self._roots[tree] = self._count
            self.nodes.token_N[root] = self.nodes.parent_N[root] = self.nodes.child_N[root] = NO_NODE
            self.nodes.sibling_N[root] = self.nodes.twin_N[root] = NO_NODE
            self._count += 1
        return root

    def _reserve(self, new_nodes: int, num_ids: int) -> None:
        """Allocates arrays of twice the size where this many more nodes, or ids, do not fit. *Mutates*."""
        old, count = self.nodes, self._count
        if count + new_nodes <= len(old.token_N) and num_ids <= len(old.tally_V):
            return
        larger = _allocate_nodes(count + new_nodes, max(num_ids, len(old.tally_V)))
        larger.token_N[:count], larger.parent_N[:count] = old.token_N[:count], old.parent_N[:count]
        link_all(larger, count)
        self.nodes = larger

    def assert_invariants(self) -> None:
        """Asserts that each node is linked once to its parent and its tree, and that texts have their lengths."""
        nodes, tally = self.nodes, np.zeros(self._count, dtype=np.int64)
        assert not nodes.tally_V.any()
        for parent in range(self._count):
            child = int(nodes.child_N[parent])
            while child >= 0:
                assert nodes.parent_N[child] == parent
                tally[child] += 1
                child = int(nodes.sibling_N[child])
        roots = sorted(self._roots.values())
        assert tally[roots].sum() == 0
        assert tally.sum() == len(self)
        for name, text in self.texts.items():
            node = text.end
            for _ in range(text.length):
                node = int(nodes.parent_N[node])
            assert node == self._roots[name.tree]


def _allocate_nodes(count: int, num_ids: int) -> ForestNodes:
    """Returns arrays with room for up to twice as many nodes, at least `_FEWEST_NODES`."""
    room = 1 << max(_FEWEST_NODES, count).bit_length()
    token, parent, child, sibling, twin = (np.empty(room, dtype=np.int32) for _ in range(5))
    key, newest = np.zeros(2 * room, dtype=np.uint64), np.empty(2 * room, dtype=np.int32)  # every node may be one key
    tally, first = (np.zeros(1 << max(num_ids - 1, 1).bit_length(), dtype=np.int32) for _ in range(2))
    return ForestNodes(token, parent, child, sibling, twin, key, newest, tally, first)
