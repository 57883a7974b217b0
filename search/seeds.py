"""Derives seeds: of anything from its name, and of each branch from its place in the tree."""

from __future__ import annotations

import hashlib
from collections import Counter

from search.tree import SearchTree


def derive_seed(*parts: int | str) -> int:
    """Derives a 63-bit seed from ints and strings; order and type matter.

    >>> derive_seed(0, "p1", 3) == derive_seed(0, "p1", 3) != derive_seed(0, "p1", 4)
    True
    """
    return _hash_text("\x1f".join([f"{part.__class__.__name__}:{part}" for part in parts]))


def _hash_text(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class BranchSeeds:
    """Derives the seed of each node from the positions among siblings on its path.

    So a branch depends neither on its batch nor on the order in which other branches finish.

    >>> seeds = BranchSeeds(7)
    >>> first, second = seeds.next_child(SearchTree.ROOT), seeds.next_child(SearchTree.ROOT)
    >>> first == derive_seed(7, 0), second == derive_seed(7, 1), seeds.count_children(SearchTree.ROOT)
    (True, True, 2)
    """

    def __init__(self, seed: int) -> None:
        self._seeds = {SearchTree.ROOT: seed}
        self._steps: dict[int, tuple[int, int]] = {}  # node -> what its seed is derived from, until then
        self._num_children: Counter[int] = Counter()
        self._num_contexts: Counter[int] = Counter()  # first source -> contexts made from it

    def next_child(self, parent: int) -> int:
        """Returns the seed of the next continuation of a node. *Mutates* the count of its continuations."""
        number = self._num_children[parent]
        self._num_children[parent] = number + 1
        return _hash_text(f"int:{self._seed_of(parent)}\x1fint:{number}")  # as `derive_seed`, in half of its time

    def count_children(self, parent: int) -> int:
        """Returns how many continuations of a node have a seed."""
        return self._num_children[parent]

    def skip_children(self, count: int) -> None:
        """Leaves out the seeds of continuations of the prompt that were made earlier. *Mutates*."""
        self._num_children[SearchTree.ROOT] = count

    def add_step(self, node: int, seed: int, index: int) -> None:
        """Records the node of step `index` of the continuation with this seed. *Mutates*."""
        self._steps[node] = seed, index

    def add_context(self, context: int, source: int) -> None:
        """Records a context whose first source is this node; contexts may have equal tokens. *Mutates*."""
        self._seeds[context] = derive_seed(self._seed_of(source), "context", self._num_contexts[source])
        self._num_contexts[source] += 1

    def _seed_of(self, node: int) -> int:
        if node not in self._seeds:  # derived late: many nodes are never continued
            seed, index = self._steps.pop(node)
            self._seeds[node] = _hash_text(f"int:{seed}\x1fstr:step\x1fint:{index}")
        return self._seeds[node]
