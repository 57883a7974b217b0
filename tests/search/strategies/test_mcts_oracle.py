"""MCTS with one simulation at a time against the textbook's algorithm, written again, on the same random trees."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest

from search.strategies.mcts import Mcts
from tests.support.given_tree import GivenEngine, GivenScorer, GivenTree, Place, list_places
from tests.support.toy_search import run_search


@dataclass
class Spot:
    """A node of the textbook's tree; the score of its step counts as one visit."""

    place: Place
    first_value: float = 0.0
    values: list[float] = field(default_factory=list)
    children: list[Spot] = field(default_factory=list)
    is_done: bool = False

    @property
    def mean(self) -> float:
        return (self.first_value + math.fsum(self.values)) / (1 + len(self.values))


class Textbook:
    """Selection by UCT (Kocsis, Szepesvari 2006) or PUCT (Silver et al. 2017), progressive widening (Coulom 2007),
    no leaf twice."""

    def __init__(self, tree: GivenTree, knobs: Mcts) -> None:
        self.tree, self.knobs, self.written = tree, knobs, list[Place]()
        self.root = Spot(())
        for _ in range(knobs.n):
            if not self.root.is_done:
                self.simulate()

    def simulate(self) -> None:
        path = [self.root]
        while path and not (path[-1].place and self.tree.ends(path[-1].place)):
            spot = path[-1]
            self.widen(spot)
            fresh = [child for child in spot.children if not child.is_done]
            if fresh:
                path.append(max(fresh, key=lambda child: self.upper_bound(child, fresh)))
            else:
                path.pop().is_done = True
        if path:
            path[-1].is_done = True
        value = self.tree.score(path[-1].place) if path else 0.0
        for spot in path:
            spot.values.append(value)

    def widen(self, spot: Spot) -> None:
        knobs = self.knobs
        allowed = max(1, math.floor(knobs.widening * (1 + len(spot.values)) ** knobs.widening_power))
        if all(child.is_done for child in spot.children):
            allowed = max(allowed, len(spot.children) + 1)
        while len(spot.children) < min(allowed, knobs.branching):
            place = (*spot.place, len(spot.children))
            self.written.append(place)
            spot.children.append(Spot(place, self.tree.score(place)))

    def upper_bound(self, child: Spot, siblings: list[Spot]) -> float:
        total, visits = sum(len(other.values) for other in siblings), len(child.values)
        if self.knobs.rule == "uct":
            return child.mean + self.knobs.exploration * math.sqrt(math.log(1 + total) / (1 + visits))
        priors = [math.exp(self.tree.logprob(other.place)) for other in siblings]
        prior = math.exp(self.tree.logprob(child.place)) / sum(priors)
        return child.mean + self.knobs.exploration * prior * math.sqrt(1 + total) / (1 + visits)


@pytest.mark.parametrize("rule", ["uct", "puct"])
@pytest.mark.parametrize("seed", range(100))
def test_mcts_writes_what_the_textbook_writes(seed: int, rule: str) -> None:
    rng = random.Random(seed)
    knobs = Mcts(
        n=rng.randint(1, 24),
        rule=rule,
        exploration=rng.choice([0.0, 0.13, 1.0]),
        branching=rng.randint(1, 5),
        widening=rng.choice([0.5, 1.0, 2.0]),
        widening_power=rng.choice([0.25, 0.5]),
        parallel=1,
        normalise="none",
    )
    tree = GivenTree(seed)
    result = run_search(knobs, engine=GivenEngine(tree), scorer=GivenScorer(tree))
    assert list_places(result) == Textbook(tree, knobs).written
