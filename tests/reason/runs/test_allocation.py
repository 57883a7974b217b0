"""One budget of samples is divided among the problems of a run, the same way however the run is interrupted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest
from reason import ConfigError, load
from reason.config.compose import compose_settings
from reason.problem import Problem
from reason.runs.allocation import GivenSamples, SampleAllocation
from reason.runs.result import UNSTABLE_USAGE_FIELDS, ProblemResult
from reason.runs.run import TaskRun
from reason.runs.summary import summarise_results
from reason.settings.validate import validate_settings
from reason.tasks.base import Task
from search.strategies.best_of_n import BestOfN
from search.strategies.self_consistency import SelfConsistency
from search.strategy import Budget
from tests.support.toy_search import ToyEngine
from tests.support.toy_solver import toy_solver

ALLOCATION = SampleAllocation(samples=4, first=2, batch=2)
VOTE = SelfConsistency(n=12)
NUM_PROBLEMS = 6

answer_lists = st.lists(
    st.lists(st.sampled_from(["1", "2", "3", None]), min_size=12, max_size=12), min_size=1, max_size=9
)


def make_task() -> Task:
    problems = [Problem(id=f"toy/{i}", question=f"What is {i}?", answer=str(i % 3)) for i in range(NUM_PROBLEMS)]
    return Task("toy", problems)


def solve_task(folder: Path, *, stop_after: int | None = None, **more: Any) -> list[ProblemResult]:
    """Runs the task in a folder, up to so many rows."""
    with toy_solver(**{"strategy": VOTE, **more}) as solver:
        run = TaskRun(solver, make_task(), folder, run_metadata={"task": "toy"}, allocation=ALLOCATION)
        for number, _ in enumerate(run.solve_missing(), 1):
            if number == stop_after:
                break
        return run.finish_run()


def stable(rows: Sequence[ProblemResult]) -> list[ProblemResult]:
    """Returns the rows without what depends on time."""
    return [replace(row, usage=replace(row.usage, **dict.fromkeys(UNSTABLE_USAGE_FIELDS, 0))) for row in rows]


def write_rounds(
    allocation: SampleAllocation, all_answers: Sequence[Sequence[str | None]], most: int
) -> list[GivenSamples]:
    """Plans and writes rounds until none is left."""
    given = [GivenSamples() for _ in all_answers]
    while (targets := allocation.plan_samples(given, most)) != [problem.num_samples for problem in given]:
        given = [GivenSamples(answers[:k], k) for answers, k in zip(all_answers, targets, strict=True)]
    return given


@given(answer_lists, st.integers(1, 3), st.integers(1, 4), st.integers(4, 12))
def test_plan_spends_the_whole_budget_within_the_limits_of_each_problem(
    all_answers: list[list[str | None]], first: int, batch: int, most: int
) -> None:
    allocation = SampleAllocation(samples=4, first=first, batch=batch)
    counts = [problem.num_samples for problem in write_rounds(allocation, all_answers, most)]
    assert sum(counts) == 4 * len(all_answers)
    assert all(first <= count <= most for count in counts)


@given(answer_lists, st.data())
def test_plan_of_a_round_does_not_depend_on_which_problems_have_finished_it(
    all_answers: list[list[str | None]], data: st.DataObject
) -> None:
    given = [GivenSamples() for _ in all_answers]
    while (targets := ALLOCATION.plan_samples(given, 12)) != [problem.num_samples for problem in given]:
        done = [GivenSamples(answers[:k], k) for answers, k in zip(all_answers, targets, strict=True)]
        finished = [data.draw(st.booleans()) for _ in given]
        some = [new if is_done else old for new, old, is_done in zip(done, given, finished, strict=True)]
        if some != done:
            assert ALLOCATION.plan_samples(some, 12) == targets
        given = done


def test_open_votes_get_more_than_decided_ones_and_closed_problems_get_nothing() -> None:
    agreed, split = ["7"] * 12, ["7", "8"] * 6
    counts = [problem.num_samples for problem in write_rounds(ALLOCATION, [agreed, split, agreed, split], most=12)]
    assert counts[0] == counts[2] == 2
    assert counts[1] + counts[3] == 12
    failed = GivenSamples(num_samples=2, is_closed=True)
    assert ALLOCATION.plan_samples([failed, GivenSamples(split[:2], 2)], most=12) == [2, 4]


def test_votes_that_no_answer_wins_get_less_than_those_that_two_answers_share() -> None:
    hopeless, split = list("abcdefghijkl"), ["7", "8"] * 6
    problems: list[Sequence[str | None]] = [hopeless, split, hopeless, [None] * 12]
    counts = [problem.num_samples for problem in write_rounds(SampleAllocation(samples=6), problems, most=12)]
    assert counts[1] == max(counts) > counts[0]
    assert counts[3] < counts[1]


def test_problem_that_is_sure_enough_gets_no_more_even_where_budget_is_left() -> None:
    given = [GivenSamples(["7"] * 2, 2), GivenSamples(["7"] * 2, 2)]
    assert ALLOCATION.plan_samples(given, most=12, stop_error=0.05) == [4, 2]
    given = [GivenSamples(["7"] * 6, 6), GivenSamples(["7"] * 6, 6)]
    assert SampleAllocation(samples=12).plan_samples(given, most=12, stop_error=0.01) == [6, 6]


def test_samples_of_a_problem_are_the_first_ones_that_it_would_have_alone(tmp_path: Path) -> None:
    rows = solve_task(tmp_path)
    assert sum(len(row.samples) for row in rows) == 4 * NUM_PROBLEMS
    assert len({len(row.samples) for row in rows}) > 1
    with toy_solver(VOTE) as solver:
        for row, (problem, alone) in zip(rows, solver.solve_many(make_task()), strict=True):
            assert row.id == problem.id
            assert not isinstance(alone, Exception)
            whole = [candidate.answer for candidate in alone.result.candidates]
            assert [sample.answer for sample in row.samples] == whole[: len(row.samples)]
    for row in rows:
        assert row.metadata["allocated"] == len(row.samples) == row.usage.calls
        assert row.usage.tokens == sum(sample.tokens for sample in row.samples)
    assert summarise_results(rows)["allocated"]["samples"] == 4 * NUM_PROBLEMS


@pytest.mark.parametrize("stop_after", [1, 5, 6, 7, 9])
def test_run_that_was_stopped_anywhere_ends_as_one_that_was_not(tmp_path: Path, stop_after: int) -> None:
    unbroken = stable(solve_task(tmp_path / "unbroken"))
    solve_task(tmp_path / "broken", stop_after=stop_after, concurrency=2)
    engine = ToyEngine()
    assert stable(solve_task(tmp_path / "broken", engine=engine, concurrency=3)) == unbroken
    assert len(engine.requests) < sum(len(row.samples) for row in unbroken)
    trees = [sorted((tmp_path / run / "trees").iterdir()) for run in ("unbroken", "broken")]
    for one, other in zip(*trees, strict=True):
        assert json.loads(one.read_text()) == json.loads(other.read_text())


def test_tree_that_is_newer_than_its_row_is_written_anew(tmp_path: Path) -> None:
    unbroken = stable(solve_task(tmp_path / "unbroken"))
    most = max(unbroken, key=lambda row: len(row.samples)).id
    solve_task(tmp_path / "run")
    file = tmp_path / "run" / "results.jsonl"
    kept_rows = [row for row in map(json.loads, file.read_text().splitlines()) if row["id"] != most]
    first_round = solve_task(tmp_path / "first", stop_after=NUM_PROBLEMS)
    old = next(row for row in first_round if row.id == most)  # as where a process was killed between tree and row
    file.write_text("".join(f"{json.dumps(row)}\n" for row in [*kept_rows, old.to_json()]))
    assert stable(solve_task(tmp_path / "run")) == unbroken


class FailsOnce(ToyEngine):
    """Raises at the requests of one problem."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        if b"What is 3?" in bytes(requests[0].prefix):
            raise RuntimeError("no luck")
        return await super().generate(requests)


def test_failed_problem_ends_with_its_error_and_is_tried_again_later(tmp_path: Path) -> None:
    rows = solve_task(tmp_path, engine=FailsOnce())
    assert [row.id for row in rows if row.error] == ["toy/3"]
    assert sum(len(row.samples) for row in rows) == 4 * NUM_PROBLEMS - ALLOCATION.first
    assert all(row.error is None and row.samples for row in solve_task(tmp_path))


def test_problem_whose_own_budget_ended_gets_no_more(tmp_path: Path) -> None:
    rows = solve_task(tmp_path, budget=Budget(calls=3))
    assert {row.usage.calls for row in rows} <= {2, 3}
    assert {row.stopped for row in rows if row.usage.calls == 3} == {"budget"}


def test_only_a_count_of_answers_is_divided(tmp_path: Path) -> None:
    for strategy in (BestOfN(n=12), SelfConsistency(n=12, select="weighted"), SelfConsistency(n=12, keep=0.5)):
        with pytest.raises(ValueError, match="needs search=self_consistency with select=majority, keep=1"):
            solve_task(tmp_path, strategy=strategy)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (["search=best_of_n"], "allocation.samples needs search=self_consistency"),
        (["search=self_consistency", "search.n=8"], "must be above allocation.samples=8, the mean of all; got 8"),
        (["search=self_consistency", "allocation.first=8"], "allocation.first must be below allocation.samples=8"),
        (["search=self_consistency", "allocation.batch=0"], "allocation.batch"),
    ],
)
def test_wrong_settings_are_refused_before_a_model_loads(settings: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        validate_settings(*compose_settings(["allocation.samples=8", *settings]))


def test_solver_alone_refuses_a_budget_for_a_run() -> None:
    with pytest.raises(ConfigError, match="divided among the problems of a run"):
        load("search=self_consistency", "allocation.samples=4")


def test_failed_round_keeps_the_samples_of_the_rounds_before(tmp_path: Path) -> None:
    """The problem has its answer so far, and goes on from there when the run is resumed."""

    class FailsLater(ToyEngine):
        async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            if len(self.requests) >= 2 * NUM_PROBLEMS:
                raise RuntimeError("the server is gone")
            return await super().generate(requests)

    broken = solve_task(tmp_path / "broken", engine=FailsLater())
    failed = [row for row in broken if row.error is not None]
    assert failed
    for row in failed:
        assert row.stopped == "error"
        assert len(row.samples) == 2
        assert row.answer is not None
    engine = ToyEngine()
    resumed, whole = solve_task(tmp_path / "broken", engine=engine), solve_task(tmp_path / "whole")
    assert stable(resumed) == stable(whole)
    assert len(engine.requests) == ALLOCATION.samples * NUM_PROBLEMS - 2 * NUM_PROBLEMS
