"""Finds nodes with the same path: twins, which continuations of one prefix with equal tokens make."""

from __future__ import annotations

from decoding.core import Tokens
from search.tree import SearchTree, Step


class SamePaths:
    """Maps each node to the first node with the same path.

    What a model computes of twins in different batches differs in the last digits, and these would rank them: so they
    take the log-probabilities, the score and the hidden state of the first.
    """

    def __init__(self, root: Tokens) -> None:
        self._first_of = {SearchTree.ROOT: SearchTree.ROOT}
        self._contexts: dict[Tokens, int] = {root: SearchTree.ROOT}  # prefix -> the first context with it
        self._nodes: dict[tuple[int, Tokens, str | None], int] = {}  # (first parent, tokens, model) -> first node

    def first_of(self, node: int) -> int:
        """Returns the first node with the path of this one, which may be this one."""
        return self._first_of[node]

    def add_node(self, node: int, parent: int, step: Step) -> int:
        """Records a new node; returns the first one with its path, which may be this one. *Mutates*."""
        first = self._nodes.setdefault((self._first_of[parent], step.tokens, step.model), node)
        self._first_of[node] = first
        return first

    def add_context(self, context: int, prefix: Tokens) -> None:
        """Records a new context whose prompt is `prefix`. *Mutates*."""
        self._first_of[context] = self._contexts.setdefault(prefix, context)
