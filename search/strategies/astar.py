"""A*-style search: continues the most promising branch of the whole tree (after arXiv 2505.13672).

The exact costs of the paper are not public; these follow its description in a survey: h is the score of the branch so
far, g adds up only the rises of h along it, and the branch with the highest f = g + h is continued.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from decoding.core import Tokens
from decoding.validation import require_count
from search.allocation import normalise_scores, rank_in_order
from search.expansion_batch import ExpansionBatch
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
                    state.record_decision([node], [self.branching], still_open=queue.open_paths)
                running.append(batch)
            if not running or state.update_decided(self.n - num_solutions):
                break
            num_ended = len(state.ended_nodes)
            # The oldest batch, even if a later one is complete: else the tree would depend on timing.
            for leaf in [*await state.collect_batch(running.popleft()), *state.ended_nodes[num_ended:]]:
                queue.push_node(leaf)
        state.expander.cancel_pending()
        left: list[int] = []
        if num_expansions == self.expansions and not state.is_decided:
            left = await state.finish_solutions(queue.pop_open(self.n - num_solutions))
        if not state.is_out_of_budget:
            return state.build_result()
        return state.build_result(still_open=state.keep_answered([*left, *queue.pop_open(len(queue))]))


@dataclass(eq=False)
class Level:
    """Nodes of one depth, in the order in which they were written; the prompt is alone at depth 0.

    parents  place of the parent of each in the level above
    scores   path score of each, nan where it is not scored
    waiting  1 for each in the queue, else 0
    has_new  whether the arrays below are older than these
    order    places in the order of rising scores, nan last
    values   the scores, normalised
    g, h     of each, see `add_rises`
    f        of each; -inf of those not in the queue
    best     place of the highest f, the first of equals
    """

    nodes: list[int] = field(default_factory=list)
    parents: array[int] = field(default_factory=lambda: array("q"))
    scores: array[float] = field(default_factory=lambda: array("d"))
    waiting: bytearray = field(default_factory=bytearray)
    has_new: bool = True
    order: NDArray[np.intp] = field(default_factory=partial(np.arange, 0))
    values: Scores = field(default_factory=partial(np.empty, 0))
    g: Scores = field(default_factory=partial(np.empty, 0))
    h: Scores = field(default_factory=partial(np.empty, 0))
    f: Scores = field(default_factory=partial(np.empty, 0))
    best: int = 0

    def add_node(self, node: int, parent: int) -> int:
        """Adds a node that is not scored, whose parent has that place; returns its own. *Mutates*."""
        self.nodes.append(node)
        self.parents.append(parent)
        self.scores.append(math.nan)
        self.waiting.append(0)
        self.has_new = True
        return len(self.nodes) - 1

    def normalise(self, how: str) -> None:
        """Updates `values`. *Mutates*."""
        scores = np.array(self.scores)
        if how == "rank":
            # most are in order from the last time, which makes a stable sort ten times as fast
            order = np.concatenate((self.order, np.arange(len(self.order), len(scores))))
            self.order = order[scores[order].argsort(kind="stable")]
            self.values = rank_in_order(scores, self.order)
        else:
            known = ~np.isnan(scores)
            self.values = scores
            self.values[known] = normalise_scores(scores[known].tolist(), how)
        self.has_new = False

    def find_priorities(self, above: Level | None) -> None:
        """Updates `g`, `h`, `f` and `best` by those of the level above; None: this is the prompt's. *Mutates*."""
        if above is None:
            self.g, self.h = np.zeros(1), np.full(1, np.nan)
        else:
            parents = np.array(self.parents)
            self.g, self.h = add_rises(above.g[parents], above.h[parents], self.values)
        f = self.g + np.where(np.isnan(self.h), 0.0, self.h)
        self.f = np.where(np.frombuffer(self.waiting, dtype=np.bool_), f, -np.inf)
        self.best = int(self.f.argmax())

    def remove_best(self) -> int:
        """Takes the node with the highest f out of the queue and returns it. *Mutates*."""
        place = self.best
        self.waiting[place] = 0
        self.f[place] = -np.inf
        self.best = int(self.f.argmax())
        return self.nodes[place]


def choose_level(levels: Sequence[Level]) -> Level:
    """Returns the level of the branch with the highest f; of equals the deepest."""
    return max(reversed(levels), key=lambda level: level.f[level.best])


class BranchQueue:
    """Queue of branches by falling f = g + h. Ties go to the deeper branch, so that a search with equal scores still
    reaches solutions, then to the earlier one.

    With `normalise` a new branch changes the f of others: of those of its depth and of all below them. They are found
    anew when the next branch is asked for, a level at a time.
    """

    def __init__(self, state: StepSearchState) -> None:
        self._state = state
        self._levels = [Level()]
        self._levels[0].add_node(SearchTree.ROOT, 0)
        self._places: list[int] = []  # of each node in its level
        self._unscored: list[int] = []
        self._pushed = [SearchTree.ROOT]  # since the last look at the tree
        self._num_queued = 1
        self.open_paths = OpenPaths(state.tree)
        """Paths of the nodes in the queue that can be continued."""

    def __len__(self) -> int:
        return self._num_queued

    def push_node(self, node: int) -> None:
        """Adds a node. *Mutates*."""
        self._pushed.append(node)
        self._num_queued += 1
        if node != SearchTree.ROOT and not self._state.has_ended(node):
            self.open_paths.add(node)

    def pop_best(self) -> int:
        """Removes and returns the node with the highest f. *Mutates*."""
        self._update_levels()
        node = choose_level(self._levels).remove_best()
        self._num_queued -= 1
        if node != SearchTree.ROOT and not self._state.has_ended(node):
            self.open_paths.remove(node)
        return node

    def pop_open(self, count: int) -> list[int]:
        """Removes the best `count` nodes and returns those of them that can be continued. *Mutates*."""
        best = [self.pop_best() for _ in range(min(count, len(self)))]
        return [node for node in best if not self._state.has_ended(node) and node != SearchTree.ROOT]

    def _update_levels(self) -> None:
        """Brings nodes, scores and priorities up to date. *Mutates*.

        A step that the scorer left out is scored with its first continuation.
        """
        tree, agg_strategy = self._state.tree, self._state.strategy.agg_strategy
        for node in range(len(self._places), len(tree)):
            parent = tree.nodes[node].parent
            if tree.nodes[node].depth == len(self._levels):
                self._levels.append(Level())
            self._places.append(self._level_of(node).add_node(node, self._place_of(parent)))
            self._unscored.append(node)
        for node in self._unscored:
            score = tree.path_score(node, agg_strategy)
            if score is not None:
                level = self._level_of(node)
                level.scores[self._place_of(node)] = score
                level.has_new = True
        self._unscored = [node for node in self._unscored if tree.nodes[node].score is None]
        for node in self._pushed:
            level = self._level_of(node)
            level.waiting[self._place_of(node)] = 1
            level.has_new = True
        self._pushed.clear()
        above, has_new = None, False
        for level in self._levels:
            if level.has_new:
                level.normalise(self._state.strategy.normalise)
                has_new = True
            if has_new:
                level.find_priorities(above)
            above = level

    def _level_of(self, node: int) -> Level:
        return self._levels[0 if node == SearchTree.ROOT else self._state.tree.nodes[node].depth]

    def _place_of(self, node: int) -> int:
        return 0 if node == SearchTree.ROOT else self._places[node]


def add_rises(g: Scores, h: Scores, scores: Scores) -> tuple[Scores, Scores]:
    """Returns g and h behind one step more: h is the score of the branch so far and g the sum of its rises.

    g, h    of the branches before the step; h is nan where none of their steps is scored
    scores  of the branches with the step, nan where it is not scored: h stays as it was before

    >>> g, h = add_rises(np.array([0.0, 0.0]), np.array([0.25, 0.25]), np.array([0.75, np.nan]))
    >>> g.tolist(), h.tolist()
    ([0.5, 0.0], [0.75, 0.25])
    """
    return g + np.fmax(scores - h, 0.0), np.where(np.isnan(scores), h, scores)
