"""Counts the KV that the open branches of a search need, as branches come and go."""

from __future__ import annotations

from collections.abc import Iterable

from search.tree import SearchTree


class OpenPaths:
    """Open branches, and how many nodes and tokens are on their paths; shared ones count once, prompts do not.

    Adding or removing a branch costs the part of its path that no other open one has, whatever the size of the tree;
    `SearchTree.pinned_nodes` counts the same from scratch.
    """

    def __init__(self, tree: SearchTree) -> None:
        self._tree = tree
        self._num_uses: dict[int, int] = {}  # per node on a path, the open branches at it and its children there
        self.num_nodes = self.num_tokens = 0

    def add(self, node: int) -> None:
        """Adds an open branch. *Mutates*."""
        num_uses = self._num_uses
        for above in self._tree.iter_upwards(node):
            num_uses[above] = uses = num_uses.get(above, 0) + 1
            if uses > 1:
                return  # the nodes above it are on a path already
            self.num_nodes += 1
            self.num_tokens += len(self._tree.nodes[above].step.tokens)

    def remove(self, node: int) -> None:
        """Removes an open branch, once for each time that it was added. *Mutates*."""
        for above in self._tree.iter_upwards(node):
            self._num_uses[above] -= 1
            if self._num_uses[above]:
                return  # other paths have the nodes above it
            del self._num_uses[above]
            self.num_nodes -= 1
            self.num_tokens -= len(self._tree.nodes[above].step.tokens)

    def count_with(self, *groups: Iterable[int]) -> list[tuple[int, int]]:
        """Returns the number of nodes and of tokens on the paths of the open branches and of the first of these groups
        of nodes, of the first two, and so on."""
        further: set[int] = set()
        num_tokens, counts = self.num_tokens, []
        for group in groups:
            num_tokens += self._tree.count_tokens(self._tree.iter_further(group, further, self._num_uses))
            counts.append((self.num_nodes + len(further), num_tokens))
        return counts
