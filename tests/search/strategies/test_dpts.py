"""Dynamic parallel tree search: its rules, what it follows and what it leaves, and its ends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import SamplingParams
from search.selection import Selection
from search.strategies.dpts import Dpts
from search.strategies.dpts_rules import PathStats, count_new_exploits, count_paths, stays_in_focus, upper_bound
from search.strategy import Budget, ScoredPaths, SearchResult
from search.tree import Step
from tests.support.toy_search import (
    ToyEngine,
    ToyScorer,
    UnsteadyEngine,
    nodes_by_parent,
    run_search,
    toy_resources,
    write_five_steps,
)

values = st.floats(0, 1)


class FirstDigit(ToyScorer):
    """A step is as good as its first digit: `Try 9..` is the best, answers are between."""

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        return ScoredPaths([[self.score_text(step.text) for step in path] for path in paths])

    @staticmethod
    def score_text(text: str) -> float:
        return 0.5 if "boxed" in text else (1 + int(next((c for c in text if c.isdigit()), "0"))) / 11


def run(strategy: Dpts, **changes: Any) -> SearchResult:
    return run_search(strategy, **({"engine": ToyEngine(write_five_steps), "scorer": FirstDigit()} | changes))


def continued(decision: Selection) -> list[int]:
    return [node for node, width in zip(decision.nodes, decision.widths, strict=True) if width]


@given(values, st.lists(values, max_size=6), st.floats(0, 2), st.integers(0, 20))
def test_bound_is_the_mean_of_the_solutions_and_a_rise_that_shrinks_with_them(
    value: float, solutions: list[float], exploration: float, around: int
) -> None:
    node = PathStats(value, total=math.fsum(solutions), solutions=len(solutions))
    parent = PathStats(0.5, solutions=len(solutions) + around)
    mean = math.fsum(solutions) / (1 + len(solutions))
    rise = exploration * value * math.sqrt(2 + len(solutions) + around) / (2 + len(solutions))
    assert upper_bound(node, parent, exploration) == pytest.approx(mean + rise)


@given(st.integers(1, 20), st.integers(1, 5000), st.lists(st.integers(0, 900), max_size=5))
def test_paths_that_go_on_fit_the_limit_or_there_is_one(parallel: int, kv_tokens: int, lengths: list[int]) -> None:
    count = count_paths(parallel, kv_tokens, lengths)
    assert 1 <= count <= parallel
    assert count == 1 or sum(lengths[:count]) <= kv_tokens
    assert count >= min(parallel, len(lengths)) or sum(lengths[: count + 1]) > kv_tokens
    assert count_paths(parallel, None, lengths) == max(1, min(parallel, len(lengths)))


@given(st.integers(1, 20), values, st.integers(0, 20))
def test_exploitation_has_its_share_and_no_more(width: int, share: float, num_focused: int) -> None:
    new = count_new_exploits(width, share, num_focused)
    assert new == 0 or new + num_focused <= width * share < new + num_focused + 1


@given(values, st.lists(values, min_size=2, max_size=6), st.booleans())
def test_focus_depends_on_a_share_of_the_mean(value: float, earlier: list[float], exploits: bool) -> None:
    limit = 0.8 * statistics.fmean(earlier)
    expected = value > limit if exploits else value >= limit
    assert stays_in_focus(value, earlier, exploits=exploits, stop_share=0.8, seek_share=0.8) == expected


@pytest.mark.parametrize("parallel", [1, 3, 8])
def test_at_most_so_many_paths_go_on_at_a_time_and_each_by_all_its_steps(parallel: int) -> None:
    result = run(Dpts(n=12, parallel=parallel, branching=3, enough=None))
    sizes = [len(continued(decision)) for decision in result.selections]
    assert max(sizes) == min(parallel, max(sizes))
    assert sizes[-1] == parallel
    children = nodes_by_parent(result.tree)
    assert {len(nodes) for nodes in children.values()} == {3}
    assert len(result.candidates) >= 12
    assert result.stop_reason == "done"


def test_fewer_paths_go_on_where_they_are_long() -> None:
    def widths(kv_tokens: int | None) -> list[int]:
        result = run(Dpts(n=12, parallel=8, enough=None, stop_share=0, kv_tokens=kv_tokens))
        return [len(continued(decision)) for decision in result.selections]

    assert max(widths(None)) == 8
    assert 1 < max(widths(60)[2:]) < 8


def test_following_needs_a_value_near_the_mean_of_those_before() -> None:
    """With a share above what any path can have, no path stays in focus once two have; with 0 all of them do."""

    def count_followed(stop_share: float) -> int:
        result = run(Dpts(n=16, parallel=1, enough=None, stop_share=stop_share, exploit_share=1, normalise="none"))
        chosen = [continued(decision)[0] for decision in result.selections]
        return sum(result.tree.nodes[b].parent == a for a, b in pairwise(chosen))

    assert count_followed(0.0) > 2 * count_followed(10.0)


def test_search_ends_where_enough_solutions_are_better_than_what_is_open() -> None:
    class BestAnswers(ToyScorer):
        @staticmethod
        def score_text(text: str) -> float:
            return 1.0 if "boxed" in text else 0.4

    few, many = (run(Dpts(n=40, enough=enough, normalise="none"), scorer=BestAnswers()) for enough in (3, None))
    assert 3 <= len(few.candidates) < 3 + 4 * 4
    assert len(many.candidates) >= 40
    assert few.usage.tokens < many.usage.tokens


def test_paths_are_written_to_their_ends_where_no_more_may_be_expanded() -> None:
    result = run(Dpts(n=6, expansions=3, enough=None))
    assert len(result.candidates) == 6
    assert all(candidate.answer is not None for candidate in result.candidates)
    assert sum(len(continued(decision)) for decision in result.selections) == 3 - 1  # and the prompt


@pytest.mark.parametrize("seed", range(8))
def test_tree_does_not_depend_on_timing(seed: int) -> None:
    engines = (ToyEngine(write_five_steps), UnsteadyEngine(seed, write_five_steps))
    steady, moody = (run(Dpts(n=12), engine=engine) for engine in engines)
    assert steady.tree.to_dict() == moody.tree.to_dict()
    assert steady.selections == moody.selections


@pytest.mark.parametrize("budget", [Budget(tokens=150), Budget(calls=9), Budget(tokens=1), Budget(forwards=60)])
def test_search_ends_at_its_budget(budget: Budget) -> None:
    result = run(Dpts(n=50, enough=None), budget=budget)
    assert result.stop_reason == "budget"
    assert budget.tokens is None or result.usage.tokens <= budget.tokens
    assert budget.calls is None or result.usage.calls <= budget.calls


def test_path_behind_which_nothing_is_written_is_a_solution() -> None:
    class Mute(ToyEngine):
        def continue_prefix(self, request: Any) -> Any:
            generation = super().continue_prefix(request)
            if b"\n\n" not in bytes(request.prefix):
                return generation
            return replace(generation, tokens=(), logprobs=(), finish="eos")

    resources = toy_resources(engine=Mute(write_five_steps), scorer=FirstDigit())
    result = run(Dpts(n=3, sampling=SamplingParams(max_tokens=200)), engine=resources.engine)
    assert len(result.candidates) >= 3
    assert result.tree.nodes[result.candidates[0].node].depth == 1


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"parallel": 0}, "parallel must be an int >= 1, got 0"),
        ({"branching": 0}, "branching must be an int >= 1, got 0"),
        ({"kv_tokens": 0}, "kv_tokens must be an int >= 1 or null, got 0"),
        ({"exploit_share": 1.5}, "exploit_share must be"),
        ({"stop_share": -1}, "stop_share must be"),
        ({"normalise": "zscore"}, "normalise must be none or rank in dpts"),
    ],
)
def test_wrong_knobs_are_refused_by_name(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dpts(**knobs)
