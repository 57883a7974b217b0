"""Adaptive branching MCTS: Thompson sampling decides whether to go wider or deeper (AB-MCTS, arXiv 2503.04412)."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.core import Tokens
from decoding.validation import require_count, require_number
from search.allocation import normalise_scores
from search.expansion_batch import ExpansionBatch
from search.open_paths import OpenPaths
from search.seeds import derive_seed
from search.step_search import StepSearch
from search.step_search_state import StepSearchState
from search.strategy import Resources, SearchResult
from search.tree import SearchTree


@dataclass(frozen=True, kw_only=True)
class AbMcts(StepSearch):
    """Writes `n` solutions one after the other; each begins at a node that is found by going down from the prompt.

    At every node one value is drawn from the posterior of a new continuation there, and one from that of all solutions
    below its children. If the first is higher, the search goes wider: the rest of a solution is written from here. Else
    it goes deeper, to the child that draws the highest value from its own posterior. Posteriors are Beta distributions
    over values from 0 to 1 (the variant AB-MCTS-A of the paper, whose nodes are answers; ours are steps).

    n          solutions
    prior      value and lack of value, in solutions, that a posterior has before any: low values are soon decided
    parallel   solutions that are written at a time
    normalise  `rank` or `none`; the value of a solution is among all solutions so far
    """

    n: int = 16
    normalise: str = "rank"
    prior: float = 0.5
    parallel: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalise not in ("none", "rank"):
            raise ValueError(
                f"normalise must be none or rank in ab_mcts, whose values are from 0 to 1; got {self.normalise}"
            )
        require_number("prior", self.prior, low=0.001, high=1000)
        require_count("parallel", self.parallel, at_least=1)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        state = StepSearchState(root, resources, self)
        solutions = SolutionTree(state, self)
        running: deque[tuple[int, ExpansionBatch]] = deque()
        num_started = 0
        while True:
            while num_started < self.n and len(running) < self.parallel:
                rng = random.Random(derive_seed(resources.seed, "thompson", num_started))
                node = solutions.choose_start(rng)
                batch = state.start_solution(node)
                if not batch:  # the budget may afford it once a running one is collected
                    break
                num_started += 1
                if node != SearchTree.ROOT:
                    state.record_decision([node], [1], still_open=solutions.open_paths)
                running.append((node, batch))
            if not running or state.update_decided(self.n - num_started + len(running)):
                break
            node, batch = running.popleft()
            num_before = len(state.ended_nodes)
            await state.collect_batch(batch)
            for leaf in state.ended_nodes[num_before:]:
                solutions.add_solution(node, leaf)
        state.expander.cancel_pending()
        return state.build_result()


class SolutionTree:
    """The solutions of one search: where each began, and which nodes it passes."""

    def __init__(self, state: StepSearchState, strategy: AbMcts) -> None:
        self._state, self._strategy = state, strategy
        self._scores: list[float | None] = []
        self._begun_at: dict[int, list[int]] = {}  # node -> solutions whose new part begins below it
        self._through: dict[int, list[int]] = {}  # node -> solutions on whose path it is
        self._children: dict[int, list[int]] = {}  # node -> children that can be continued
        self.open_paths = OpenPaths(state.tree)
        """Paths of all nodes at which a solution may begin."""

    def add_solution(self, start: int, leaf: int) -> None:
        """Adds a solution that was written from `start` to `leaf`. *Mutates*."""
        number, tree = len(self._scores), self._state.tree
        self._scores.append(tree.path_score(leaf, self._strategy.agg_strategy))
        self._begun_at.setdefault(start, []).append(number)
        for node in tree.path_nodes(leaf):
            if node not in self._through and self._state.is_open(node):
                self._children.setdefault(tree.nodes[node].parent, []).append(node)
                self.open_paths.add(node)
            self._through.setdefault(node, []).append(number)

    def choose_start(self, rng: random.Random) -> int:
        """Returns the node at which the next solution is to begin."""
        values, node = self._find_values(), SearchTree.ROOT
        while children := self._children.get(node):
            wider = self._draw(self._begun_at.get(node, ()), values, rng)
            below = [number for child in children for number in self._through[child]]
            if wider >= self._draw(below, values, rng):
                break
            draws = [self._draw(self._through[child], values, rng) for child in children]
            node = children[draws.index(max(draws))]
        return node

    def _find_values(self) -> list[float | None]:
        """Value of each solution so far; None where it is not scored."""
        known = [score for score in self._scores if score is not None]
        values = iter(normalise_scores(known, self._strategy.normalise))
        return [None if score is None else next(values) for score in self._scores]

    def _draw(self, solutions: Sequence[int], values: Sequence[float | None], rng: random.Random) -> float:
        known = [value for number in solutions if (value := values[number]) is not None]
        total = math.fsum(known)
        return rng.betavariate(self._strategy.prior + total, self._strategy.prior + len(known) - total)
