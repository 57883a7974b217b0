"""Merged branches that get more continuations than their own (`search.merge_extra`)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.clustering import count_extra
from search.step_search import StepSearch
from search.strategies.beam_search import BeamSearch
from search.strategy import Budget, SearchResult
from tests.support.searches import search_classes
from tests.support.toy_search import ToyEngine, nodes_by_parent, run_search, write_five_steps

SAME = ToyEngine(lambda seed, prefix: f"Try {seed % 97}1.\n\nTry {seed % 89}2.\n\n\\boxed{{3}}")
"""All steps of one level have the same meaning."""


def run(strategy: Any, **changes: Any) -> SearchResult:
    return run_search(strategy, **({"engine": ToyEngine(write_five_steps)} | changes))


@given(st.integers(0, 50), st.integers(1, 20), st.floats(0, 3))
def test_extra_grows_with_the_members_up_to_twice_the_width(width: int, members: int, share: float) -> None:
    extra = count_extra(width, members, share)
    assert 0 <= extra <= width
    assert extra <= width * share * (members - 1)
    assert extra <= count_extra(width, members + 1, share)
    assert count_extra(width, 1, share) == 0


@pytest.mark.parametrize(("share", "width"), [(0.0, 8), (0.05, 10), (0.5, 16)])
def test_merged_branch_is_continued_more_often(share: float, width: int) -> None:
    """Eight first steps are one branch: it gets the whole width, and on top of it a share for each other member."""
    result = run(BeamSearch(n=8, beam_width=8, merge=True, merge_extra=share), engine=SAME)
    first, *later = (len(nodes) for nodes in _levels(result))
    assert (first, later[0]) == (8, width)
    members = [len(children) for node, children in nodes_by_parent(result.tree).items() if node in range(8)]
    assert max(members) - min(members) <= 1  # in turn


def _levels(result: SearchResult) -> list[list[int]]:
    levels: dict[int, list[int]] = {}
    for i, node in enumerate(result.tree.nodes):
        levels.setdefault(node.depth, []).append(i)
    return list(levels.values())


@pytest.mark.parametrize("name", search_classes(StepSearch))
def test_every_search_ends_with_an_answer(name: str) -> None:
    strategy = search_classes()[name](n=8, merge=True, merge_extra=0.5)
    result = run(strategy)
    assert result.best is not None
    assert result.stop_reason == "done"
    assert run(strategy).tree.to_dict() == result.tree.to_dict()
    short = run(strategy, budget=Budget(tokens=100))
    assert short.usage.tokens <= 100


def test_wrong_knobs_are_refused_by_name() -> None:
    for knobs, message in (
        ({"merge_extra": 0.5}, "merge_extra needs merge=true, got 0.5"),
        ({"merge": True, "merge_extra": -1}, "merge_extra must be"),
        ({"merge": True, "merge_extra": 0.5, "early_stop": 1.0}, "early_stop needs merge_extra=0"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            BeamSearch(**knobs)


@pytest.mark.parametrize("name", ["dvts", "diverse_beam"])
@pytest.mark.parametrize("extra", [0.0, 0.5])
def test_independent_parts_of_a_search_do_not_merge(name: str, extra: float) -> None:
    """They used to: a part whose first steps were all merged into others lost its width."""
    strategy = search_classes()[name](n=16, merge=True, merge_extra=extra)
    result = run(strategy, engine=SAME)
    first = result.selections[0]
    assert sorted(strategy.find_parts(result.tree, first.nodes)) == [0, 1, 2, 3]
    assert sum(first.widths) == 16
    assert all(width >= 0 for selection in result.selections for width in selection.widths)
    assert len(result.candidates) >= 16
