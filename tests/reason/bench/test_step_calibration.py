"""Calibration of step scores: its measures by their definitions, and the report of a run scored by the oracle."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reason
from reason.bench.step_calibration import (
    ScoredSolution,
    ScoredStep,
    choose_right,
    fill_bins,
    list_steps,
    rate_folds,
    rate_order,
    rate_reliability,
    read_solutions,
)
from reason.commands.bench import step_calibration
from reason.config.compose import compose_settings
from reason.problem import Problem
from reason.runs import resume
from reason.runs.run import TaskRun
from reason.scorers.none import NoScorer
from reason.tasks.base import Task
from reason.tasks.selection import select_task

STEPS = st.lists(
    st.builds(
        ScoredStep,
        problem=st.sampled_from("ab"),
        scores=st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.95, 1.0]), min_size=1, max_size=3).map(tuple),
        is_correct=st.booleans(),
    ),
    min_size=1,
    max_size=20,
)


def count_in_order(pairs: list[tuple[ScoredStep, ScoredStep]]) -> float | None:
    wins = [
        (right.scores[-1] > wrong.scores[-1]) + (right.scores[-1] == wrong.scores[-1]) / 2 for right, wrong in pairs
    ]
    return sum(wins) / len(wins) if wins else None


@given(STEPS)
def test_measures_are_those_of_their_definitions(steps: list[ScoredStep]) -> None:
    rated = rate_reliability(steps)
    pairs = [(a, b) for a, b in itertools.product(steps, steps) if a.is_correct and not b.is_correct]
    assert rated.auc == pytest.approx(count_in_order(pairs))
    within = [(a, b) for a, b in pairs if (a.problem, a.depth) == (b.problem, b.depth)]
    assert rated.auc_within == rate_order(steps, "last") == pytest.approx(count_in_order(within))
    by_bin: dict[int, list[ScoredStep]] = {}
    for step in steps:
        by_bin.setdefault(min(9, int(10 * step.scores[-1])), []).append(step)
    gaps = [abs(sum(s.scores[-1] for s in part) - sum(s.is_correct for s in part)) for part in by_bin.values()]
    assert rated.calibration_error == pytest.approx(sum(gaps) / len(steps))
    bins = fill_bins(steps)
    assert sum(b.num_steps for b in bins) == len(steps)
    assert all(a.highest <= b.lowest for a, b in itertools.pairwise(bins))
    assert max(b.num_steps for b in bins) - min(b.num_steps for b in bins) <= 1


def test_folds_choose_by_their_own_scores() -> None:
    samples = [
        ScoredSolution(answer, answer == "1", (0, 1), scores, (True, True))
        for answer, scores in (("1", (0.2, 0.8)), ("2", (0.6, 0.5)), ("2", (0.1, 0.5)), (None, (1.0, 1.0)))
    ]
    right = {fold: (quality.best, quality.weighted) for fold, quality in rate_folds({"p": samples}, []).items()}
    assert right == {"last": (1.0, 0.0), "min": (0.0, 0.0), "prod": (0.0, 0.0), "mean": (0.0, 0.0)}
    assert not choose_right(samples, "majority")


SETTINGS = ["search=best_of_n", "search.n=6", "scorer=oracle", "scorer.steps=true", "speculation=off"]
CONFIG, CHOICES = compose_settings([*SETTINGS, "+task=synthetic", "task.size=6", "task.difficulty=[3,4]"])


def run_task() -> Task:
    return select_task(CONFIG, CHOICES, NoScorer())[0]


@pytest.fixture(scope="module")
def oracle_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six problems whose steps are scored by the checker."""
    folder = tmp_path_factory.mktemp("run")
    about = {"task": "synthetic", "search": "best_of_n", "seed": 0, "config": resume.hash_settings(CONFIG)}
    resume.save_settings(folder, config=CONFIG, choices=CHOICES, about=about)
    with reason.load(*SETTINGS) as solver:
        run = TaskRun(solver, run_task(), folder, run_metadata=about)
        list(run.solve_missing())
        run.finish_run()
    return folder


def test_report_of_the_oracle_is_perfect(
    oracle_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.md"
    monkeypatch.setattr(sys, "argv", ["step_calibration", str(oracle_run), "--out", str(report)])
    assert step_calibration.run_program() == 0
    assert report.read_text() in capsys.readouterr().out
    for depth in (1, 2):  # behind an error the checker never says that it is right, and an answer may be by luck
        (line,) = [line for line in report.read_text().splitlines() if line.startswith(f"| {depth} | ")]
        assert line.endswith("| 0.000 | 1.000 | 1.000 |")
    solutions = read_solutions(oracle_run, run_task())
    any_right = [any(sample.is_right for sample in samples) for samples in solutions.values()]
    assert [choose_right(samples, "best") for samples in solutions.values()] == any_right
    for solution in (solution for samples in solutions.values() for solution in samples):
        assert solution.checks == tuple(sorted(solution.checks, key=lambda check: check is not True))  # no way back
        assert [check for check in solution.checks if check is not None][:-1] == list(solution.scores)[:-1]


def test_run_without_a_checker_or_scores_is_refused(oracle_run: Path) -> None:
    unknown = [Problem(id=problem.id, question=problem.question) for problem in run_task()]
    with pytest.raises(ValueError, match=r"the steps of synthetic/heldout/0/0 cannot be checked"):
        read_solutions(oracle_run, unknown)
    unscored = ScoredSolution("1", True, (0, 1), (None, 0.5), (True, True))
    with pytest.raises(ValueError, match="no step of the samples has a score"):
        list_steps({"p": [unscored]})
