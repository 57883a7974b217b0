"""Adaptive branching MCTS: its solutions, where they begin, and its end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import pytest

from search.strategies.ab_mcts import AbMcts
from search.strategy import Budget, ScoredPaths, SearchResult
from search.tree import SearchTree, Step
from tests.support.toy_search import (
    ConstantScorer,
    ToyEngine,
    ToyScorer,
    UnsteadyEngine,
    nodes_by_parent,
    run_search,
    write_five_steps,
)


class BestBeginning(ToyScorer):
    """A path is as good as its first step, and one first step in four is good."""

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        return ScoredPaths([[self.score_text(path[0].text)] * len(path) for path in paths])

    @staticmethod
    def score_text(text: str) -> float:
        return 0.9 if ToyScorer.score_text(text) > 0.75 else 0.1


def find_starts(result: SearchResult) -> list[int]:
    """The node at which each solution's new part begins, in order of the solutions."""
    visited, starts = set[int](), []
    for candidate in result.candidates:
        path = result.tree.path_nodes(candidate.node)
        new = next((i for i, node in enumerate(path) if node not in visited), len(path))
        starts.append(path[new - 1] if new else SearchTree.ROOT)
        visited.update(path)
    return starts


def test_search_writes_n_solutions_and_begins_below_others() -> None:
    for n in (1, 7, 24):
        result = run_search(AbMcts(n=n), engine=ToyEngine(write_five_steps))
        assert len(result.candidates) == n == result.usage.calls
        assert all(candidate.answer is not None for candidate in result.candidates)
    starts = find_starts(result)
    assert len(set(starts)) > 3
    assert starts[0] == SearchTree.ROOT


def test_good_beginning_is_continued_more_often_than_bad_ones() -> None:
    def mean_score(scorer: ToyScorer) -> float:
        means = []
        for seed in range(12):
            result = run_search(AbMcts(n=24, prior=0.2), engine=ToyEngine(write_five_steps), scorer=scorer, seed=seed)
            last = [result.tree.path_nodes(candidate.node)[0] for candidate in result.candidates[12:]]
            means.append(statistics.fmean(BestBeginning.score_text(result.tree.nodes[i].step.text) for i in last))
        return statistics.fmean(means)

    assert mean_score(BestBeginning()) > mean_score(ToyScorer()) + 0.1


def test_equal_values_split_the_width_between_wider_and_deeper() -> None:
    """All solutions have the value one half: no way is preferred, and both are gone."""
    numbers = []
    for seed in range(10):
        result = run_search(AbMcts(n=24), engine=ToyEngine(write_five_steps), scorer=ConstantScorer(), seed=seed)
        numbers.append(len(nodes_by_parent(result.tree)[SearchTree.ROOT]))
    assert 4 <= statistics.fmean(numbers) <= 20


@pytest.mark.parametrize("seed", range(10))
def test_tree_does_not_depend_on_timing(seed: int) -> None:
    engines = (ToyEngine(write_five_steps), UnsteadyEngine(seed, write_five_steps))
    steady, moody = (run_search(AbMcts(n=12), engine=engine) for engine in engines)
    assert steady.tree.to_dict() == moody.tree.to_dict()


@pytest.mark.parametrize("budget", [Budget(tokens=150), Budget(calls=5), Budget(tokens=1)])
def test_search_ends_at_its_budget(budget: Budget) -> None:
    result = run_search(AbMcts(n=50), engine=ToyEngine(write_five_steps), budget=budget)
    assert result.stop_reason == "budget"
    assert budget.tokens is None or result.usage.tokens <= budget.tokens


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"prior": 0}, r"prior must be in \[0.001, 1000\], got 0"),
        ({"parallel": 0}, "parallel must be an int >= 1, got 0"),
        ({"normalise": "zscore"}, "normalise must be none or rank in ab_mcts"),
    ],
)
def test_wrong_knobs_are_refused_by_name(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AbMcts(**knobs)
