"""MCTS with one simulation at a time against the textbook's algorithm, written again, on the same random trees."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from search.strategies import mcts
from search.strategies.mcts import Mcts
from search.strategies.mcts_rules import ChildStats, max_children, select_child
from tests.support.given_tree import BROKEN_SCORES, SCORES, GivenEngine, GivenScorer, GivenTree, Place, list_places
from tests.support.score_scales import scale_score
from tests.support.toy_search import run_search


@dataclass
class Spot:
    """A node of the textbook's tree; the score of its step, if it has one, counts as one visit."""

    place: Place
    first_value: float | None = None
    values: list[float] = field(default_factory=list)
    children: list[Spot] = field(default_factory=list)
    is_done: bool = False

    @property
    def mean(self) -> float:
        values = self.values if self.first_value is None else [self.first_value, *self.values]
        return math.fsum(values) / len(values) if values else 0.5


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
        value = (self.find_value(path[-1].place) or 0.0) if path else 0.0  # nothing is known of it: no success
        for spot in path:
            spot.values.append(value)

    def widen(self, spot: Spot) -> None:
        knobs = self.knobs
        allowed = max(1, math.floor(knobs.widening * (1 + len(spot.values)) ** knobs.widening_power))
        if all(child.is_done for child in spot.children):
            allowed = max(allowed, len(spot.children) + 1)
        fresh = [(*spot.place, child) for child in range(len(spot.children), min(allowed, knobs.branching))]
        self.written += fresh
        spot.children += [Spot(place, self.find_value(place)) for place in fresh]

    def find_value(self, place: Place) -> float | None:
        """Score of a path, or its rank among those of all paths with as many steps so far."""
        fold, level = self.knobs.agg_strategy, [other for other in self.written if len(other) == len(place)]
        score = self.tree.path_score(place, fold)
        known = [s for other in level if (s := self.tree.path_score(other, fold)) is not None]
        return None if score is None else scale_score(score, known, self.knobs.normalise)

    def upper_bound(self, child: Spot, siblings: list[Spot]) -> float:
        total, visits = sum(len(other.values) for other in siblings), len(child.values)
        if self.knobs.rule == "uct":
            return child.mean + self.knobs.exploration * math.sqrt(math.log(1 + total) / (1 + visits))
        priors = [math.exp(self.tree.logprob(other.place)) for other in siblings]
        prior = math.exp(self.tree.logprob(child.place)) / sum(priors)
        return child.mean + self.knobs.exploration * prior * math.sqrt(1 + total) / (1 + visits)


def agrees(seed: int, rule: str) -> bool:
    rng = random.Random(seed)
    knobs = Mcts(
        n=rng.randint(1, 24),
        rule=rule,
        exploration=rng.choice([0.0, 0.13, 1.0]),
        branching=rng.randint(1, 5),
        widening=rng.choice([0.5, 1.0, 2.0]),
        widening_power=rng.choice([0.25, 0.5]),
        parallel=1,
        normalise=rng.choice(["none", "rank"]),
        agg_strategy=rng.choice(["last", "min", "prod", "mean"]),
    )
    tree = GivenTree(seed, scores=rng.choice([SCORES, BROKEN_SCORES, (0.5,)]))
    result = run_search(knobs, engine=GivenEngine(tree), scorer=GivenScorer(tree))
    return list_places(result) == Textbook(tree, knobs).written


@pytest.mark.parametrize("rule", ["uct", "puct"])
@pytest.mark.parametrize("seed", range(200))
def test_mcts_writes_what_the_textbook_writes(seed: int, rule: str) -> None:
    assert agrees(seed, rule)


def select_last(children: Sequence[ChildStats], rule: str, exploration: float) -> int:
    """Of equals the last."""
    return len(children) - 1 - select_child(children[::-1], rule, exploration)


def explore_more(children: Sequence[ChildStats], rule: str, exploration: float) -> int:
    return select_child(children, rule, 1.1 * exploration)


def widen_early(num_visits: int, constant: float, exponent: float, limit: int) -> int:
    """Counts the visit that is under way."""
    return max_children(num_visits + 1, constant, exponent, limit)


MUTANTS: dict[str, Any] = {
    "the last of equals": ("select_child", select_last),
    "a tenth more exploration": ("select_child", explore_more),
    "one visit too many": ("max_children", widen_early),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_broken_rule_would_be_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcts, *MUTANTS[mutant])
    assert not all(agrees(seed, "uct") for seed in range(60))
