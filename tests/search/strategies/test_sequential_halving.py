"""Sequential halving: paths per rung, equal budgets of the rungs, and which paths go on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest

from decoding.core import SamplingParams, Tokens
from search.selection import Selection
from search.strategies.best_of_n import BestOfN
from search.strategies.sequential_halving import SequentialHalving
from search.strategy import SearchResult
from search.voting import fill_unscored
from tests.support.toy_search import (
    ConstantScorer,
    SomeStepsScorer,
    ToyEngine,
    nodes_by_level,
    run_search,
    write_five_steps,
    write_solution,
)

DEEP = SamplingParams(max_tokens=100_000)


def write_many_steps(seed: int, prefix: Tokens) -> str:
    """More steps than the rungs of any search here have."""
    return f"Try {seed % 1000}.\n\n" if bytes(prefix).count(b"\n\n") < 70 else "\\boxed{1}"


def halve(n: int, rung_steps: int = 1, **changes: object) -> SearchResult:
    strategy = SequentialHalving(n=n, rung_steps=rung_steps, sampling=DEEP)
    return run_search(strategy, **{"engine": ToyEngine(write_many_steps)} | changes)


def find_rungs(decisions: Sequence[Selection]) -> list[list[Selection]]:
    """The decisions of each rung: its last one gives up paths, unless only one is left."""
    rungs: list[list[Selection]] = [[]]
    for decision in decisions:
        rungs[-1].append(decision)
        if 0 in decision.widths:
            rungs.append([])
    return rungs


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31])
@pytest.mark.parametrize("rung_steps", [1, 2])
def test_each_rung_has_half_the_paths_and_the_same_budget(n: int, rung_steps: int) -> None:
    *rungs, last = find_rungs(halve(n, rung_steps).selections)
    live = n
    for rung in rungs:
        assert {len(decision.nodes) for decision in rung} == {live}
        steps, budget = len(rung) * live, n * rung_steps
        assert budget - live < steps <= budget
        live = math.ceil(live / 2)
        assert sum(rung[-1].widths) == live
    assert len(rungs) == math.ceil(math.log2(n))
    assert {len(decision.nodes) for decision in last} == {live} == {1}


@pytest.mark.parametrize("seed", range(40))
def test_better_half_goes_on_once_each(seed: int) -> None:
    strategy = SequentialHalving(n=3 + seed % 14, agg_strategy=("last", "min", "mean", "prod")[seed % 4])
    result = run_search(strategy, engine=ToyEngine((write_solution, write_five_steps)[seed % 2]), seed=seed)
    for decision in result.selections:
        scores = [result.tree.path_score(node, strategy.agg_strategy) for node in decision.nodes]
        continued = sorted(s for s, width in zip(scores, decision.widths, strict=True) if width and s is not None)
        lost = sorted(s for s, width in zip(scores, decision.widths, strict=True) if not width and s is not None)
        assert set(decision.widths) <= {0, 1}
        assert len(lost) in (0, len(scores) // 2)
        assert not lost or max(lost) <= min(continued)


@pytest.mark.parametrize("seed", range(20))
def test_finished_paths_are_candidates_and_the_best_of_all_wins(seed: int) -> None:
    result = run_search(SequentialHalving(n=16), seed=seed)
    finished = [i for i, node in enumerate(result.tree.nodes) if node.finish is not None]
    assert sorted(candidate.node for candidate in result.candidates) == finished
    scores = {candidate.node: candidate.score or 0 for candidate in result.candidates if candidate.answer is not None}
    assert result.best is not None
    assert scores[result.best] == max(scores.values())


def test_first_steps_are_those_of_best_of_n_and_fewer_tokens_follow() -> None:
    for seed in range(10):
        engine = ToyEngine(write_five_steps)
        halved, whole = (run_search(s(n=16), engine=engine, seed=seed) for s in (SequentialHalving, BestOfN))
        assert len(nodes_by_level(halved.tree)[0]) == len(nodes_by_level(whole.tree)[0]) == 16
        assert halved.usage.tokens < 0.7 * whole.usage.tokens


def test_ties_go_to_the_earlier_path() -> None:
    (first, *_, last), *_ = find_rungs(halve(8, 3, scorer=ConstantScorer()).selections)
    assert first.widths == (1,) * 8
    assert last.widths == (1,) * 4 + (0,) * 4


def test_path_without_a_score_has_the_median_one() -> None:
    given = 0
    for seed in range(40):
        result = halve(9, scorer=SomeStepsScorer(), seed=seed)
        first = result.selections[0]
        scores = [result.tree.nodes[node].score for node in first.nodes]
        known = [score for score in scores if score is not None]
        filled = [statistics.median(known) if score is None else score for score in scores] if known else [0.0] * 9
        assert fill_unscored(scores) == filled
        best = sorted(range(9), key=lambda i: (-filled[i], i))[:5]
        assert [i for i, width in enumerate(first.widths) if width] == sorted(best)
        given += 0 < len(known) < 9
    assert given > 20


def test_wrong_rung_steps_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="rung_steps must be an int >= 1, got 0"):
        SequentialHalving(rung_steps=0)
