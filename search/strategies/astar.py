"""A*-style search: continues the most promising branch of the whole tree (after arXiv 2505.13672).

The exact costs of the paper are not public; these follow its description in a survey: h is the score of the branch so
far, g adds up only the rises of h along it, and the branch with the highest f = g + h is continued.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from decoding.core import Tokens
from decoding.validation import require_count
from search.expand import ExpansionBatch
from search.open_paths import OpenPaths
from search.step_search import StepSearch
from search.step_search_state import StepSearchState
from search.strategy import Resources, SearchResult
from search.tree import SearchTree


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


class BranchQueue:
    """Priority queue of branches by falling f. Ties go to the deeper branch, so that a search with equal scores still
    reaches solutions, then to the earlier one."""

    def __init__(self, state: StepSearchState) -> None:
        self._state = state
        self._heap: list[tuple[float, int, int]] = [(0.0, 0, SearchTree.ROOT)]
        self._open: set[int] = set()
        self.open_paths = OpenPaths(state.tree)
        """Paths of the nodes in the queue that can be continued."""

    def __len__(self) -> int:
        return len(self._heap)

    def push_node(self, node: int) -> None:
        """Adds a node. *Mutates*."""
        depth = 0 if node == SearchTree.ROOT else self._state.tree.nodes[node].depth
        heapq.heappush(self._heap, (-self.priority_of(node), -depth, node))
        if not self._state.has_ended(node):
            self._open.add(node)
            self.open_paths.add(node)

    def pop_best(self) -> int:
        """Removes and returns the node with the highest f. *Mutates*."""
        if self._state.strategy.normalise != "none":  # values change as more branches are known
            self._heap = [(-self.priority_of(node), depth, node) for _, depth, node in self._heap]
            heapq.heapify(self._heap)
        *_, node = heapq.heappop(self._heap)
        if node in self._open:
            self._open.remove(node)
            self.open_paths.remove(node)
        return node

    def pop_open(self, count: int) -> list[int]:
        """Removes the best `count` nodes and returns those of them that can be continued. *Mutates*."""
        best = [self.pop_best() for _ in range(min(count, len(self)))]
        return [node for node in best if not self._state.has_ended(node) and node != SearchTree.ROOT]

    def priority_of(self, node: int) -> float:
        """f = g + h of a node. A step that is not scored keeps h as it was before."""
        g, h = 0.0, None
        for step in self._state.tree.path_nodes(node):
            score = self._state.find_value(step)
            if score is not None:
                g, h = g + (0.0 if h is None else max(0.0, score - h)), score
        return g + (h or 0.0)
