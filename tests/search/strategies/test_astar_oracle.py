"""A* against its description, written again, on the same random trees."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from search.strategies import astar
from search.strategies.astar import AStar, Level, Scores, add_rises, choose_level
from tests.support.given_tree import BROKEN_SCORES, SCORES, GivenEngine, GivenScorer, GivenTree, Place, list_places
from tests.support.score_scales import scale_score
from tests.support.toy_search import run_search


class BestFirst:
    """Best-first search by f = g + h: h is the score of a branch, g the sum of the rises of h on the way to it."""

    def __init__(self, tree: GivenTree, knobs: AStar) -> None:
        self.tree, self.knobs, self.written = tree, knobs, list[Place]()
        self.waiting: list[Place] = [()]
        self.solutions: list[Place] = []
        self.num_expansions = 0
        running: list[Place] = []  # in the order in which they began, in which they are also written
        while True:
            while (parent := self.choose_parent(len(running))) is not None:
                running.append(parent)
            if not running:
                break
            self.write_children(running.pop(0))
        if self.num_expansions == knobs.expansions:
            for place in [self.pop_best() for _ in range(min(knobs.n - len(self.solutions), len(self.waiting)))]:
                self.write_to_the_end(place)

    def choose_parent(self, num_running: int) -> Place | None:
        """The next branch to expand; ended ones that come before it are solutions."""
        while self.waiting and len(self.solutions) < self.knobs.n:
            if self.num_expansions == self.knobs.expansions or num_running == self.knobs.parallel:
                return None
            best = self.pop_best()
            if not best or not self.tree.ends(best):
                self.num_expansions += 1
                return best
            self.solutions.append(best)
        return None

    def pop_best(self) -> Place:
        """The branch with the highest f; of equals the deepest, of these the first that was written."""
        order = {place: number for number, place in enumerate(self.written)}
        best = max(self.waiting, key=lambda place: (self.find_f(place), len(place), -order.get(place, -1)))
        self.waiting.remove(best)
        return best

    def write_children(self, parent: Place) -> None:
        children = [(*parent, child) for child in range(self.knobs.branching)]
        self.written += children
        self.waiting += children

    def write_to_the_end(self, place: Place) -> None:
        while not self.tree.ends(place):
            place = (*place, 0)
            self.written.append(place)

    def find_h(self, place: Place) -> float | None:
        score = self.tree.path_score(place, self.knobs.agg_strategy)
        if score is None or self.knobs.normalise == "none":
            return score
        level = [other for other in self.written if len(other) == len(place)]
        scores = [self.tree.path_score(other, self.knobs.agg_strategy) for other in level]
        return scale_score(score, [s for s in scores if s is not None], self.knobs.normalise)

    def find_f(self, place: Place) -> float:
        on_the_way = [self.find_h(place[: end + 1]) for end in range(len(place))]
        known = [h for h in on_the_way if h is not None]
        rises = [max(0.0, after - before) for before, after in pairwise(known)]
        return sum(rises) + known[-1] if known else 0.0


def draw_case(seed: int) -> tuple[GivenTree, AStar]:
    rng = random.Random(seed)
    tree = GivenTree(seed, scores=rng.choice([SCORES, BROKEN_SCORES, (0.5,)]))
    return tree, AStar(
        n=rng.randint(1, 12),
        branching=rng.randint(1, 4),
        parallel=rng.randint(1, 4),
        expansions=rng.choice([3, 6, 256, 256]),
        agg_strategy=rng.choice(["last", "min", "prod", "mean"]),
        normalise=rng.choice(["none", "rank"]),
    )


def agrees(seed: int) -> bool:
    tree, knobs = draw_case(seed)
    result = run_search(knobs, engine=GivenEngine(tree), scorer=GivenScorer(tree))
    return list_places(result) == BestFirst(tree, knobs).written


@pytest.mark.parametrize("seed", range(300))
def test_astar_writes_what_its_description_says(seed: int) -> None:
    assert agrees(seed)


def forget_rises(g: Scores, h: Scores, scores: Scores) -> tuple[Scores, Scores]:
    return g, add_rises(g, h, scores)[1]


def count_falls(g: Scores, h: Scores, scores: Scores) -> tuple[Scores, Scores]:
    return g + np.nan_to_num(abs(scores - h)), add_rises(g, h, scores)[1]


def forget_score_before_gap(g: Scores, h: Scores, scores: Scores) -> tuple[Scores, Scores]:
    return add_rises(g, h, scores)[0], scores


def prefer_shallow(levels: Sequence[Level]) -> Level:
    return choose_level(levels[::-1])


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "without g": (astar, "add_rises", forget_rises),
    "falls count too": (astar, "add_rises", count_falls),
    "a step without a score has no h": (astar, "add_rises", forget_score_before_gap),
    "shallow before deep": (astar, "choose_level", prefer_shallow),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_broken_rule_would_be_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[mutant])
    assert not all(agrees(seed) for seed in range(100))
