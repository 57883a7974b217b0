"""Successive halving of a comparison, several seeds, and what each search needs for the accuracy of best-of-N."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Usage
from reason.bench.evaluation import RunSummary, compare_at_equal_tokens, summarize_run
from reason.bench.evaluation_report import format_report
from reason.bench.halving import find_behind, halve, plan_rungs
from reason.bench.problem_values import correct_answers
from reason.bench.reach import COSTS, reach_accuracy, reach_table
from reason.bench.runs import RunOutcome, RunSpec, merge_seeds
from reason.grading import Grade
from reason.runs.result import ProblemResult, SampleResult
from tests.support.paths import SCRIPTS


def make_outcome(search: str, width: int, rights: Sequence[bool], tokens: int) -> RunOutcome:
    rows = [
        ProblemResult(
            id=f"p/{i}",
            gold="1",
            grade=Grade("right" if right else "wrong"),
            samples=(SampleResult(node=0, answer="1", grade="right" if right else "wrong", score=0.5),) * width,
            usage=Usage(tokens=tokens, forwards=tokens),
            metadata={"task": "t", "model": "m", "scorer": "s", "speculation": "off", "seed": 0},
        )
        for i, right in enumerate(rights)
    ]
    return RunOutcome(
        RunSpec(search, width), rows, {"seconds": 2.0 * len(rows), "forwards": 9, "solved": len(rows)}, []
    )


def share(count: int, of: int = 40) -> list[bool]:
    return [i < count for i in range(of)]


BEST_OF_4 = make_outcome("best_of_n", 4, share(20), 400)


@given(st.integers(1, 500), st.integers(1, 500))
def test_rungs_double_and_end_with_all_problems(first: int, num_problems: int) -> None:
    rungs = plan_rungs(first, num_problems)
    assert rungs[-1] == num_problems
    assert rungs == sorted(set(rungs))
    assert all(after == 2 * before for before, after in pairwise(rungs[:-1]))


def test_searches_behind_one_of_their_cost_are_dropped_the_furthest_first() -> None:
    good, bad, worse, dear, cheap = (
        make_outcome(name, 4, share(count), tokens)
        for name, count, tokens in (
            ("beam_search", 34, 420), ("mcts", 22, 430), ("astar", 10, 410), ("dvts", 12, 4000), ("treepo", 8, 100),
        )
    )  # fmt: skip
    behind = find_behind([BEST_OF_4, good, bad, worse, dear, cheap])
    assert [(one.outcome.spec.search, one.leader.search) for one in behind] == [
        ("astar", "beam_search"), ("dvts", "beam_search"),
    ]  # at most half of five: mcts is behind as well, and nothing is as cheap as treepo  # fmt: skip
    assert [one.outcome.spec.search for one in find_behind([BEST_OF_4, good, bad, dear, cheap])] == ["dvts", "mcts"]
    assert find_behind([BEST_OF_4, good, make_outcome("ets", 4, share(31), 400)]) == []
    assert behind[0].difference.value == pytest.approx(0.6)


def test_baselines_are_never_dropped() -> None:
    poor = make_outcome("best_of_n", 4, share(0), 400)
    ahead = [make_outcome(name, 4, share(40), 400) for name in ("ets", "dvts")]
    assert find_behind([poor, make_outcome("self_consistency", 4, share(0), 400), *ahead]) == []


def test_halving_goes_on_with_those_that_are_left_and_reads_only_the_problems_of_each_rung() -> None:
    rights = {"best_of_n": 0.5, "ets": 0.9, "mcts": 0.1}
    calls: list[tuple[str, int]] = []

    def execute(spec: RunSpec, num_problems: int) -> RunOutcome:
        calls.append((spec.search, num_problems))
        return make_outcome(spec.search, 4, share(round(rights[spec.search] * num_problems), num_problems), 400)

    specs = [RunSpec(name, 4) for name in rights]
    outcomes, dropped = halve(specs, [20, 40, 80], execute)
    assert [(outcome.spec.search, len(outcome.rows)) for outcome in outcomes] == [("best_of_n", 80), ("ets", 80)]
    assert [(one.outcome.spec.search, len(one.outcome.rows)) for one in dropped] == [("mcts", 20)]
    assert calls == [(name, 20) for name in rights] + [(n, k) for k in (40, 80) for n in ("best_of_n", "ets")]
    report = format_report(outcomes, command="c", machine={}, plots={}, dropped=dropped, seeds=[3, 5])
    assert "| mcts 4 | 20 | 0.100 | 400 | ets 4 | +80.0" in report
    assert "seeds 3, 5" in report
    saved = json.loads(report.split("```json\n")[1].split("\n```")[0])
    assert [run["search"] for run in saved["runs"]] == ["best_of_n", "ets"]
    assert [run["problems"] for run in saved["dropped"]] == [20]


def test_seeds_of_a_problem_count_as_one_problem() -> None:
    one, other = make_outcome("ets", 4, share(10), 400), make_outcome("ets", 4, share(30), 600)
    merged = merge_seeds([one, other])
    assert correct_answers(merged.rows).tolist() == [1.0] * 10 + [0.5] * 20 + [0.0] * 10
    summary = summarize_run(merged)
    assert (summary.problems, summary.accuracy, summary.tokens, summary.seconds) == (40, 0.5, 500, 2.0)
    against = compare_at_equal_tokens(merged, merge_seeds([BEST_OF_4, BEST_OF_4]))
    assert {comparison.difference.problems for comparison in against} == {40}


def test_search_with_fewer_problems_is_compared_on_them() -> None:
    few = make_outcome("ets", 4, share(5, 10), 400)
    comparison = compare_at_equal_tokens(few, BEST_OF_4)[0]
    assert (comparison.difference.value, comparison.difference.problems) == (-0.5, 10)  # best-of-4 is right in all ten


SUMMARY = summarize_run(BEST_OF_4)


def summary(search: str, width: int, accuracy: float, cost: float) -> RunSummary:
    numbers: dict[str, Any] = dict.fromkeys(COSTS, cost)
    return replace(SUMMARY, search=search, width=width, accuracy=accuracy, **numbers)


def test_costs_are_interpolated_between_the_widths_around_the_accuracy() -> None:
    runs = [summary("best_of_n", 64, 0.5, 6400), summary("ets", 16, 0.6, 1600), summary("ets", 4, 0.4, 400)]
    reached = {one.search: one for one in reach_accuracy(runs, 0.5)}
    assert reached["ets"].costs == pytest.approx(dict.fromkeys(COSTS, 800))
    assert reached["ets"].widths == (4, 16)
    assert (reached["best_of_n"].widths, reached["best_of_n"].is_upper_bound) == ((64,), True)
    assert "| ets | 4 to 16 | 800 (0.12) | 800.0 (0.12) |" in reach_table(runs, runs[0])


def test_search_that_is_ahead_at_its_narrowest_has_a_bound_and_one_that_never_is_none() -> None:
    runs = [summary("best_of_n", 64, 0.5, 6400), summary("dvts", 4, 0.55, 320), summary("mcts", 64, 0.45, 9000)]
    text = reach_table(runs, runs[0])
    assert "| dvts | 4 | at most 320 (0.05)" in text
    assert "| mcts | not reached, 0.450 at best | - | - | - | - |" in text


@given(st.floats(0.31, 0.59), st.floats(1, 1e4), st.floats(1, 10))
def test_interpolated_cost_lies_between_those_of_the_two_widths(goal: float, cost: float, times: float) -> None:
    runs = [summary("ets", 4, 0.3, cost), summary("ets", 16, 0.6, cost * times)]
    for value in reach_accuracy(runs, goal)[0].costs.values():
        assert cost * (1 - 1e-9) <= value <= cost * times * (1 + 1e-9)


def evaluate(folder: Path, *more: str) -> list[str]:
    return [
        sys.executable, str(SCRIPTS / "bench" / "evaluate.py"), "task.difficulty=1", "--searches", "best_of_n", "mcts",
        "--widths", "2", "--problems", "8", "--halving", "4", "--seeds", "0", "1", "--folder", str(folder), *more,
    ]  # fmt: skip


def read_runs(text: str) -> Any:
    """The accuracies and tokens of a report: what does not depend on time."""
    saved = json.loads(text.split("```json")[1].split("```")[0])
    names = ("search", "width", "accuracy", "low", "high", "tokens", "problems")
    return [[run[name] for name in names] for run in saved["runs"]]


@pytest.mark.slow
def test_killed_comparison_goes_on_where_it_was(tmp_path: Path) -> None:
    """It is killed in the second run, with rows of it on disk; the same command solves only what is missing."""
    front = tmp_path / "front.yaml"
    unbroken = subprocess.run(
        evaluate(tmp_path / "unbroken", "--write-front", str(front)),
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert len(front.read_text().splitlines()) >= 4
    process = subprocess.Popen(evaluate(tmp_path / "broken"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = tmp_path / "broken" / "best_of_n-2-seed_1" / "results.jsonl"
    end = time.monotonic() + 200
    while not (rows.exists() and rows.stat().st_size) and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    num_done = len(rows.read_text().splitlines())
    again = subprocess.run(evaluate(tmp_path / "broken"), capture_output=True, text=True, timeout=300, check=True)
    assert read_runs(again.stdout) == read_runs(unbroken.stdout)
    solved = sum(line.startswith("[") for line in again.stderr.splitlines())
    total = sum(line.startswith("[") for line in unbroken.stderr.splitlines())
    assert 1 <= num_done <= 4
    assert solved == total - 4 - num_done  # the first run was over
