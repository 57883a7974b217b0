"""A*-style search: always continue the most promising branch of the whole tree (after arXiv 2505.13672).

The paper's exact costs are not public; ours follow the description of its survey: h is the judgement of the branch so
far, g adds up only the rises of h along it, and f = g + h is to be as large as can be.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from decoding.core import Tokens
from decoding.validation import require_count
from search.expand import Growth
from search.step_search import TreeSearch
from search.step_search_state import Walk
from search.strategy import Resources, SearchResult
from search.tree import SearchTree


@dataclass(frozen=True, kw_only=True)
class AStar(TreeSearch):
    """The branch with the highest f goes on, `branching` times; a finished one that comes first is a solution.

    Up to `parallel` expansions are under way at once. They are taken up in the order they were begun, whoever is done
    first: the tree does not depend on timing, and a straggler holds up its search only when all behind it are done.

    n           solutions after which the search ends
    branching   continuations of a branch
    parallel    expansions under way at once; 1 is strictly best-first
    expansions  at most, if fewer than n solutions have been found by then
    """

    n: int = 4
    branching: int = 4
    parallel: int = 4
    expansions: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("branching", "parallel", "expansions"):
            require_count(name, getattr(self, name), at_least=1)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        walk = Walk(root, resources, self)
        queue = Queue(walk)
        under_way: deque[Growth] = deque()
        found = expansions = 0
        while True:
            while found < self.n and expansions < self.expansions and len(under_way) < self.parallel and queue:
                if (node := queue.pop()) in walk.ended:
                    found += 1
                    continue
                growth = walk.launch([node] * self.branching)
                if not growth:
                    queue.push(node)
                    break
                expansions += 1
                if node != SearchTree.ROOT:
                    walk.note([node], [len(growth)], still_open=queue.open_nodes())
                under_way.append(growth)
            if not under_way or walk.decided(self.n - found):
                break
            before = len(walk.ended)
            for leaf in [*await walk.collect(under_way.popleft()), *walk.ended[before:]]:
                queue.push(leaf)
        walk.run.cancel()
        return walk.conclude()


class Queue:
    """Branches by falling f; of equals the deeper, so that without a signal it still arrives, then the earlier."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._heap: list[tuple[float, int, int]] = [(0.0, 0, SearchTree.ROOT)]

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, node: int) -> None:
        """*Mutates* the queue."""
        depth = 0 if node == SearchTree.ROOT else self._walk.tree.nodes[node].depth
        heapq.heappush(self._heap, (-self.promise(node), -depth, node))

    def pop(self) -> int:
        """The most promising node. *Mutates* the queue."""
        return heapq.heappop(self._heap)[-1]

    def open_nodes(self) -> list[int]:
        """Who waits to be continued."""
        ended = set(self._walk.ended)
        return [node for *_, node in self._heap if node not in ended and node != SearchTree.ROOT]

    def promise(self, node: int) -> float:
        """f = g + h. A step without a score counts as no better than the one before."""
        g, h = 0.0, None
        for step in self._walk.tree.path(node):
            score = self._walk.tree.score(step, self._walk.knobs.agg_strategy)
            if score is not None:
                g, h = g + (0.0 if h is None else max(0.0, score - h)), score
        return g + (h or 0.0)
