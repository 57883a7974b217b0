"""Sweeps that estimate first what they take, and do not start above a budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason import ConfigError
from reason.commands.sweep import take_budget, take_limit
from reason.runs.sweep_estimate import RunTrial, SweepBudget, estimate_trials, parse_budget
from tests.support.paths import ROOT

SWEEP = ["+task=synthetic", "speculation=off", "search.n=2,3", "search.sampling.max_tokens=40", "hydra.sweep.dir=all"]


def sweep(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from reason.commands.main import run_program; sys.exit(run_program())"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, "sweep", *arguments]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=280)


def test_sweep_above_its_budget_is_not_started(tmp_path: Path) -> None:
    done = sweep(tmp_path, "--budget", "10", *SWEEP, "task.size=5")
    assert done.returncode == 2
    assert done.stdout.startswith("estimate: 2 runs, 10 problems in all, ")
    assert "tokens are above the budget of 10; nothing was started" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_estimate_from_all_problems_holds_what_the_sweep_then_takes(tmp_path: Path) -> None:
    done = sweep(tmp_path, "--budget", *SWEEP, "limit=2")
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    summaries = [json.loads((tmp_path / "all" / job / "summary.json").read_text()) for job in "01"]
    assert [summary["settings"]["search.n"] for summary in summaries] == [2, 3]
    low, high = (float(word.replace(",", "")) for word in first.split(" in all, ")[1].split(" tokens")[0].split(" to "))
    assert low <= sum(summary["usage"]["tokens"] for summary in summaries) <= high
    assert "4 problems in all" in first


def test_trial_that_fails_starts_nothing(tmp_path: Path) -> None:
    done = sweep(tmp_path, "--budget", "1h", *SWEEP, "search.depth=3")
    assert done.returncode == 2
    assert "search.depth" in done.stderr
    assert "the trial for the estimate failed, and the sweep was not started" in done.stderr
    assert list(tmp_path.iterdir()) == []


trials = st.lists(
    st.builds(
        RunTrial,
        tokens=st.lists(st.integers(1, 500), min_size=1, max_size=3),
        seconds=st.floats(0.1, 9),
        concurrency=st.integers(1, 16),
        problems=st.integers(3, 50),
    ),
    min_size=1,
    max_size=5,
)


@given(trials, st.floats(0, 9))
def test_estimate_is_a_span_that_holds_the_trial_scaled_up(runs: list[RunTrial], loading: float) -> None:
    estimate = estimate_trials(runs, loading)
    mean = sum(sum(run.tokens) / len(run.tokens) * run.problems for run in runs)
    assert estimate.tokens.low - 1e-6 <= mean <= estimate.tokens.high + 1e-6
    solving = sum(run.seconds for run in runs)
    assert loading + solving - 1e-6 <= estimate.seconds.low <= estimate.seconds.high + 1e-6
    one_by_one = sum(run.seconds / len(run.tokens) * run.problems for run in runs)
    assert estimate.seconds.high == pytest.approx(loading + one_by_one)
    assert estimate.refusal(SweepBudget(tokens=int(estimate.tokens.high))) is None
    assert estimate.refusal(SweepBudget(tokens=int(estimate.tokens.high) - 1)) is not None
    assert estimate.refusal(SweepBudget(seconds=estimate.seconds.high / 2)) is not None


@pytest.mark.parametrize(
    ("arguments", "budget", "rest"),
    [
        (["a=1"], None, ["a=1"]),
        (["a=1", "--budget"], SweepBudget(), ["a=1"]),
        (["--budget", "a=1"], SweepBudget(), ["a=1"]),
        (["--budget", "+task=x"], SweepBudget(), ["+task=x"]),
        (["--budget", "--multirun"], SweepBudget(), ["--multirun"]),
        (["--budget=30m", "a=1"], SweepBudget(seconds=1800.0), ["a=1"]),
        (["a=1", "--budget", "2_000", "b=2"], SweepBudget(tokens=2000), ["a=1", "b=2"]),
    ],
)
def test_budget_is_taken_out_of_the_arguments(
    arguments: list[str], budget: SweepBudget | None, rest: list[str]
) -> None:
    assert take_budget(arguments) == (budget, rest)


@pytest.mark.parametrize("text", ["0", "2 weeks", "many", "0h", "h"])
def test_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--budget must be tokens, such as 500000, or a time"):
        parse_budget(text)


def test_trial_has_its_own_limit_and_folder() -> None:
    assert take_limit(["limit=7", "log_to=[wandb]", "hydra.sweep.dir=x", "a=1,2"]) == (7, ["a=1,2"])
    with pytest.raises(ConfigError, match="--budget needs one limit, a number from 1 on, got limit=2,4"):
        take_limit(["limit=2,4"])
