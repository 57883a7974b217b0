"""A*-style search: the order of expansions, its end, and independence of timing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from search.strategies.astar import AStar
from search.strategy import Budget, SearchResult
from tests.support.toy_search import ToyEngine, UnsteadyEngine, nodes_by_parent, run_search, write_five_steps


def promise(result: SearchResult, node: int) -> float:
    scores = [result.tree.nodes[i].score or 0.0 for i in result.tree.path_nodes(node)]
    return scores[-1] + sum(max(0.0, b - a) for a, b in pairwise(scores))


def test_astar_expands_the_most_promising_branch_one_at_a_time() -> None:
    result = run_search(AStar(n=3, branching=3, parallel=1, normalise="none"), engine=ToyEngine(write_five_steps))
    below = nodes_by_parent(result.tree)
    order = sorted((kids[0], node) for node, kids in below.items() if node >= 0)
    expanded: set[int] = set()
    for first_child, node in order:
        waiting = [i for i in range(first_child) if i not in expanded and result.tree.nodes[i].finish is None]
        assert promise(result, node) == max(promise(result, i) for i in waiting)
        expanded.add(node)


def test_astar_ends_with_n_solutions() -> None:
    for n in (1, 3, 6):
        result = run_search(AStar(n=n, parallel=1), engine=ToyEngine(write_five_steps))
        assert len([c for c in result.candidates if c.answer is not None]) >= n
        assert result.best is not None


def test_astar_ends_after_its_expansions() -> None:
    result = run_search(AStar(n=50, branching=2, expansions=5), engine=ToyEngine(write_five_steps))
    # the branches that are open after five expansions of two are then written to their ends
    assert result.usage.calls == 10 + 6
    assert len([c for c in result.candidates if c.answer is not None]) == 6


def test_astar_ends_when_no_branch_is_open() -> None:
    result = run_search(AStar(n=50, branching=3), engine=ToyEngine(lambda *_: "\\boxed{1}"))
    assert len(result.tree) == 3


@pytest.mark.parametrize("seed", range(10))
def test_astar_tree_does_not_depend_on_timing(seed: int) -> None:
    engines = (ToyEngine(write_five_steps), UnsteadyEngine(seed, write_five_steps))
    steady, moody = (run_search(AStar(n=4), engine=engine) for engine in engines)
    assert steady.tree.to_dict() == moody.tree.to_dict()


@pytest.mark.parametrize("budget", [Budget(tokens=150), Budget(calls=7), Budget(tokens=1)])
def test_astar_ends_at_its_budget(budget: Budget) -> None:
    result = run_search(AStar(n=50), engine=ToyEngine(write_five_steps), budget=budget)
    assert result.stop_reason == "budget"
    assert budget.tokens is None or result.usage.tokens <= budget.tokens


@pytest.mark.parametrize("knob", ["n", "branching", "parallel", "expansions"])
def test_astar_refuses_wrong_knobs_by_name(knob: str) -> None:
    knobs: dict[str, Any] = {knob: 0}
    with pytest.raises(ValueError, match=f"{knob} must be an int >= 1, got 0"):
        AStar(**knobs)
