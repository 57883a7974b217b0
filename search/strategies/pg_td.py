"""Planning-guided decoding: tree search over tokens, whose places are worth what the model makes of them (PG-TD).

Zhang et al. 2023, arXiv:2303.05510. The value is the scorer's, of the whole solution that the model writes greedily.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, replace

from decoding.core import FinishReason, Generation, Tokens
from decoding.validation import require_count, require_not_negative, require_positive
from search.expand import Expander
from search.expansion_batch import ExpansionBatch
from search.sample import build_result, make_candidate
from search.strategies.pg_td_rules import Place, choose_token, read_next_tokens, write_given
from search.strategies.pg_td_tokens import GivenTokens
from search.strategies.token_search import TokenSearch
from search.strategy import Candidate, Resources, SearchResult
from search.tree import SearchTree


@dataclass(frozen=True, kw_only=True)
class PgTd(TokenSearch):
    """Simulations go down the tree of likely tokens; where one leaves it, the model completes the solution greedily.

    The score of this solution is the value of the place; a token is worth the best value behind it. A place that a
    solution passed already has that solution, and its likely tokens are known: simulations that end there cost nothing.

    n            solutions that are written
    branching    likely tokens of a place that are tried
    exploration, base   constants of the bound
    simulations  most simulations
    parallel     solutions that are written at a time; 1 is as published
    """

    select: str = "best"
    branching: int = 3
    exploration: float = 4.0
    base: float = 10.0
    simulations: int = 1024
    parallel: int = 4

    names_top = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("branching", self.branching, at_least=1, at_most=20)
        require_not_negative("exploration", self.exploration)
        require_positive("base", self.base)
        require_count("simulations", self.simulations, at_least=1, at_most=65_536)  # each of them takes time
        require_count("parallel", self.parallel, at_least=1)

    @property
    def needs_scorer(self) -> bool:
        """Whether it chooses by score: it always does."""
        return True

    @property
    def num_top(self) -> int:
        """`GenerationRequest.num_top` of its requests."""
        return self.branching

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        planner = Planner(self, root, resources)
        running: deque[tuple[Route, ExpansionBatch]] = deque()
        num_simulations = num_started = 0
        while True:
            while num_started < self.n and num_simulations < self.simulations and len(running) < self.parallel:
                route = planner.choose_route()
                if route is None:  # its end is being written
                    break
                if not planner.back_up_known(route):
                    batch = planner.start_solution(route)
                    if not batch:  # the budget may afford it once a running one is collected
                        break
                    running.append((route, batch))
                    num_started += 1
                num_simulations += 1
            if not running:
                break
            await planner.collect_solution(*running.popleft())
        return build_result(planner.expander, planner.candidates, self.select, self.unscored)


@dataclass(frozen=True)
class Route:
    """The way of one simulation: its tokens, the places before each of them, and the one behind the last."""

    tokens: list[int]
    places: list[Place]

    @property
    def end(self) -> Place:
        """The place at which the simulation ends."""
        return self.places[-1]

    def enter(self) -> None:
        """Counts the simulation. *Mutates* the places."""
        for place in self.places:
            place.visits += 1
            place.returns += 1
        self.end.is_expanded = True

    def back_up(self, value: float) -> None:
        """Gives its value to all places on its way. *Mutates* them."""
        for place in self.places:
            place.best = value if place.best is None else max(place.best, value)


class Planner:
    """The tree of tokens of one search, beside its tree of steps.

    candidates  the solutions, in the order in which they were requested
    """

    def __init__(self, strategy: PgTd, root: Tokens, resources: Resources) -> None:
        self.strategy = strategy
        self._engine = GivenTokens(resources.engine)
        num_top = max(resources.num_top, strategy.branching)
        self.expander = Expander(root, replace(resources, engine=self._engine, num_top=num_top))
        self.candidates: list[Candidate] = []
        self._root, self._top = root, Place()
        self._greedy = replace(strategy.sampling, temperature=0.0)
        self._children: dict[int, list[int]] = {}  # node of the tree of steps -> its children
        self._num_known = 0  # nodes in it

    def choose_route(self) -> Route | None:
        """Returns the way of the next simulation; None where that must wait. *Mutates*: adds the place at its end."""
        strategy, place, tokens, places = self.strategy, self._top, list[int](), [self._top]
        while place.is_expanded and place.finish is None:
            if place.next_tokens is None:
                return None
            token = choose_token(place, width=strategy.branching, base=strategy.base, exploration=strategy.exploration)
            tokens.append(token)
            place = self._find_below(place, tokens)
            places.append(place)
        return Route(tokens, places)

    def back_up_known(self, route: Route) -> bool:
        """Ends a simulation at a place whose solution is written; returns False where it is not. *Mutates*."""
        solution = route.end.solution
        if solution is not None:
            route.enter()
            route.back_up(self._find_value(solution))
        return solution is not None

    def start_solution(self, route: Route) -> ExpansionBatch:
        """Starts the greedy completion of a simulation at once; empty if the budget affords none. *Mutates*."""
        parent, length = self._find_parent(route.tokens)
        limit = replace(self._greedy, max_tokens=max(1, self._greedy.max_tokens - length))
        batch = self.expander.start_batch([parent], limit, one_step=False)
        for expansion in batch.pending:
            given = write_given(route.places[length:], route.tokens[length:])
            self._engine.given[expansion.seed] = self._root + tuple(route.tokens[:length]), given
            route.enter()
        return batch

    async def collect_solution(self, route: Route, batch: ExpansionBatch) -> None:
        """Waits for a solution, and adds what it passed and its value to the tree of tokens. *Mutates*."""
        (leaf,) = await self.expander.collect_batch(batch)
        (expansion,) = batch.pending
        route.end.solution = leaf
        self._engine.given.pop(expansion.seed, None)
        ends = [route.end]
        for prefix, generation in self._engine.parts.pop(expansion.seed, []):
            ends.append(self._add_generation(prefix, generation, leaf))
        for end in (ends[0], ends[-1]):
            if end.finish is None and end.next_tokens is None:
                end.finish = "length"  # cut by the context window or the budget: nothing will be known behind it
        if leaf != expansion.parent:
            self.candidates.append(make_candidate(self.expander, leaf, self.strategy.agg_strategy))
        route.back_up(self._find_value(leaf))

    def _add_generation(self, prefix: Tokens, generation: Generation, leaf: int) -> Place:
        """Adds what a generation passed to the tree of tokens; `leaf` is the solution that it is a part of.

        Returns the place behind its last token.
        """
        written, place = list[int](), self._top
        for token in prefix[len(self._root) :]:
            written.append(token)
            place = self._find_below(place, written)
        for likely, token, logprob in zip(
            read_next_tokens(generation), generation.tokens, generation.logprobs, strict=True
        ):
            place.next_tokens = likely
            written.append(token)
            place = self._find_below(place, written)
            place.logprob, place.solution = logprob, leaf
        if generation.finish in ("eos", "stop"):
            place.finish = generation.finish
        return place

    def _find_below(self, above: Place, tokens: list[int]) -> Place:
        """Returns the place behind these tokens, of which the last one is below `above`; adds it if it is new."""
        token = tokens[-1]
        if token not in above.below:
            likely = {} if above.next_tokens is None else above.next_tokens.by_id
            above.below[token] = Place(logprob=likely.get(token, 0.0), finish=self._find_finish(tokens))
        return above.below[token]

    def _find_finish(self, tokens: list[int]) -> FinishReason | None:
        """Returns why a solution ends with the last of these tokens; None if it goes on."""
        params, resources = self._greedy, self.expander.resources
        if tokens[-1] in resources.end_tokens:
            return "eos"
        width = max((len(stop.encode()) for stop in params.stop), default=0)  # a token has at least one byte
        tail = resources.decode(tuple(tokens[-width:])) if width else ""
        if tokens[-1] in params.stop_token_ids or any(stop in tail for stop in params.stop):
            return "stop"
        return "length" if len(tokens) >= params.max_tokens else None

    def _find_value(self, leaf: int) -> float:
        """The score of a solution; the median of the others, or 0, where it has none."""
        score = self.expander.tree.path_score(leaf, self.strategy.agg_strategy)
        if score is not None:
            return score
        return statistics.median([c.score for c in self.candidates if c.score is not None] or [0.0])

    def _find_parent(self, tokens: list[int]) -> tuple[int, int]:
        """Returns the deepest node of the tree of steps whose path these tokens begin with, and its length."""
        tree = self.expander.tree
        for node in range(self._num_known, len(tree)):
            self._children.setdefault(tree.nodes[node].parent, []).append(node)
        self._num_known = len(tree)
        node, length = SearchTree.ROOT, 0
        while True:
            for child in self._children.get(node, ()):
                step = tree.nodes[child].step.tokens
                is_open = tree.nodes[child].finish is None
                if is_open and tuple(tokens[length : length + len(step)]) == step:
                    node, length = child, length + len(step)
                    break
            else:
                return node, length
