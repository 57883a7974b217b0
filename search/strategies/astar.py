"""A*-style search: continues the most promising branch of the whole tree (after arXiv 2505.13672).

The exact costs of the paper are not public; these follow its description in a survey: h is the score of the branch so
far, g adds up only the rises of h along it, and the branch with the highest f = g + h is continued.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from decoding.core import Tokens
from decoding.validation import require_count
from search.allocation import normalise_scores
from search.expand import ExpansionBatch
from search.open_paths import OpenPaths
from search.step_search import StepSearch
from search.step_search_state import StepSearchState
from search.strategy import Resources, SearchResult
from search.tree import SearchTree

Scores: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class AStar(StepSearch):
    """Continues the branch with the highest f `branching` times; a finished branch with the highest f is a solution.

    Up to `parallel` expansions run at a time. They are collected in the order of their start, not of their completion:
    the tree does not depend on timing, and a slow expansion delays the search only when all later ones are complete.

    n           solutions after which the search ends
    branching   continuations of each branch
    parallel    concurrent expansions; 1 is strictly best-first
    expansions  maximum number of expansions; the best branches are then written to their ends, for n solutions in all
    normalise   `rank` compares branches of different depths by their place among those of their own; with `none` a
                product of step scores, which falls with every step, keeps the search near the prompt
    """

    n: int = 4
    branching: int = 8
    parallel: int = 4
    expansions: int = 256
    normalise: str = "rank"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("branching", "parallel", "expansions"):
            require_count(name, getattr(self, name), at_least=1)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        state = StepSearchState(root, resources, self)
        queue = BranchQueue(state)
        running: deque[ExpansionBatch] = deque()
        num_solutions = num_expansions = 0
        while True:
            while (
                num_solutions < self.n and num_expansions < self.expansions and len(running) < self.parallel and queue
            ):
                if state.has_ended(node := queue.pop_best()):
                    num_solutions += 1
                    continue
                batch = state.start_batch([node] * self.branching)
                if not batch:  # the budget may afford it once a running batch is collected
                    queue.push_node(node)
                    break
                num_expansions += 1
                if node != SearchTree.ROOT:
                    state.record_decision([node], [len(batch)], still_open=queue.open_paths)
                running.append(batch)
            if not running or state.update_decided(self.n - num_solutions):
                break
            num_ended = len(state.ended_nodes)
            # The oldest batch, even if a later one is complete: else the tree would depend on timing.
            for leaf in [*await state.collect_batch(running.popleft()), *state.ended_nodes[num_ended:]]:
                queue.push_node(leaf)
        state.expander.cancel_pending()
        if num_expansions == self.expansions and not state.is_decided:
            endings = [state.start_solution(node) for node in queue.pop_open(self.n - num_solutions)]
            for ending in endings:
                await state.collect_batch(ending)
        return state.build_result()


@dataclass
class Level:
    """Nodes of one depth, in the order in which they were written.

    parents  place of the parent of each in the level above; the prompt is alone in its own
    scores   path score of each, nan where it is not scored
    """

    nodes: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


class BranchQueue:
    """Queue of branches by falling f = g + h. Ties go to the deeper branch, so that a search with equal scores still
    reaches solutions, then to the earlier one.

    With `normalise` a new branch changes the f of others, so that of the whole tree is found anew, a level at a time.
    """

    def __init__(self, state: StepSearchState) -> None:
        self._state = state
        self._levels: list[Level] = []
        self._places: list[int] = []  # of each node in its level
        self._unscored: list[int] = []
        self._queued = {SearchTree.ROOT}
        self._priorities: Scores | None = None  # of each node, the prompt first; -inf of those not in the queue
        self.open_paths = OpenPaths(state.tree)
        """Paths of the nodes in the queue that can be continued."""

    def __len__(self) -> int:
        return len(self._queued)

    def push_node(self, node: int) -> None:
        """Adds a node. *Mutates*."""
        self._queued.add(node)
        self._priorities = None
        if node != SearchTree.ROOT and not self._state.has_ended(node):
            self.open_paths.add(node)

    def pop_best(self) -> int:
        """Removes and returns the node with the highest f. *Mutates*."""
        if self._priorities is None:
            self._priorities = self._find_priorities()
        ties = np.flatnonzero(self._priorities == self._priorities.max()) - 1
        node = max(map(int, ties), key=self.depth_of)  # the first of equals
        self._priorities[node + 1] = -np.inf
        self._queued.remove(node)
        if node != SearchTree.ROOT and not self._state.has_ended(node):
            self.open_paths.remove(node)
        return node

    def pop_open(self, count: int) -> list[int]:
        """Removes the best `count` nodes and returns those of them that can be continued. *Mutates*."""
        best = [self.pop_best() for _ in range(min(count, len(self)))]
        return [node for node in best if not self._state.has_ended(node) and node != SearchTree.ROOT]

    def depth_of(self, node: int) -> int:
        """Depth of a node, which decides between nodes with the same f."""
        return 0 if node == SearchTree.ROOT else self._state.tree.nodes[node].depth

    def _find_priorities(self) -> Scores:
        self._add_new_nodes()
        priorities = np.zeros(len(self._places) + 1)
        g, h = np.zeros(1), np.full(1, np.nan)
        for level in self._levels:
            g, h = add_rises(g[level.parents], h[level.parents], self._normalise_scores(level.scores))
            priorities[np.asarray(level.nodes) + 1] = g + np.nan_to_num(h)
        waiting = np.full(len(priorities), -np.inf)
        queued = np.fromiter(self._queued, dtype=np.int64) + 1
        waiting[queued] = priorities[queued]
        return waiting

    def _add_new_nodes(self) -> None:
        """Adds the nodes that are not in the levels yet, and scores that came since. *Mutates*.

        A step that the scorer left out is scored with its first continuation.
        """
        tree, agg_strategy = self._state.tree, self._state.strategy.agg_strategy
        for number in range(len(self._places), len(tree)):
            node = tree.nodes[number]
            if node.depth > len(self._levels):
                self._levels.append(Level())
            level = self._levels[node.depth - 1]
            self._places.append(len(level.nodes))
            level.nodes.append(number)
            level.parents.append(self._places[node.parent] if node.parent >= 0 else 0)
            level.scores.append(np.nan)
            self._unscored.append(number)
        for number in self._unscored:
            score = tree.path_score(number, agg_strategy)
            if score is not None:
                self._levels[tree.nodes[number].depth - 1].scores[self._places[number]] = score
        self._unscored = [number for number in self._unscored if tree.nodes[number].score is None]

    def _normalise_scores(self, scores: list[float]) -> Scores:
        values = np.array(scores)
        known = ~np.isnan(values)
        values[known] = normalise_scores(values[known].tolist(), self._state.strategy.normalise)
        return values


def add_rises(g: Scores, h: Scores, scores: Scores) -> tuple[Scores, Scores]:
    """Returns g and h behind one step more: h is the score of the branch so far and g the sum of its rises.

    g, h    of the branches before the step; h is nan where none of their steps is scored
    scores  of the branches with the step, nan where it is not scored: h stays as it was before

    >>> g, h = add_rises(np.array([0.0, 0.0]), np.array([0.25, 0.25]), np.array([0.75, np.nan]))
    >>> g.tolist(), h.tolist()
    ([0.5, 0.0], [0.75, 0.25])
    """
    return g + np.fmax(scores - h, 0.0), np.where(np.isnan(scores), h, scores)
