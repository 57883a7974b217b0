"""Saved samples of a run are divided among its problems after the fact."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from reason.problem import Problem
from reason.runs.allocation import SampleAllocation
from reason.runs.result import SampleResult
from reason.runs.run import TaskRun
from reason.tasks.base import Task
from search.strategies.best_of_n import BestOfN
from tests.support.paths import SCRIPTS
from tests.support.toy_solver import toy_solver


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS / "dev"))
    return importlib.import_module("divide_samples")


def make_samples(answers: str) -> list[SampleResult]:
    return [
        SampleResult(node=i, answer=answer, grade="right" if answer == "7" else "wrong", score=None, tokens=2)
        for i, answer in enumerate(answers)
    ]


def test_vote_that_more_samples_win_is_ahead_of_equal_shares(script: ModuleType) -> None:
    problems = [make_samples("7777777777"), make_samples("8787787777"), make_samples("7777777777")]
    counts = script.divide_samples(problems, SampleAllocation(samples=4), most=10)
    assert counts == [2, 8, 2]
    assert script.count_votes(problems, counts) == (1.0, 8.0)
    assert script.count_votes(problems, [4, 4, 4]) == (pytest.approx(5 / 6), 8.0)  # a tie is half right
    accuracy, lead = script.compare_votes(problems, 4, 10)
    assert (accuracy, lead) == (1.0, pytest.approx(1 / 6))


def test_script_reads_the_folders_of_runs(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with toy_solver(BestOfN(n=64)) as solver:
        problems = [Problem(id=f"toy/{i}", question=f"What is {i}?", answer=str(i % 3)) for i in range(5)]
        run = TaskRun(solver, Task("toy", problems), tmp_path, run_metadata={"task": "toy"})
        list(run.solve_missing())
    monkeypatch.setattr(sys, "argv", ["divide_samples.py", str(tmp_path), "--orders", "2"])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"mean {mean}, at most {most}" for mean, most in script.SETTINGS
    ]
