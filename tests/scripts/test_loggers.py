"""Runs that send their numbers to trackers of experiments, from outside."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reason import ConfigError
from reason.runs.loggers.base import require_loggers
from tests.support.paths import SCRIPTS
from tests.support.tracker_stand_ins import read_calls, write_stand_ins

SOLVE = ["search.n=2", "search.sampling.max_tokens=40", "+task=synthetic", "task.size=3", "speculation=off"]


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    return write_stand_ins(tmp_path / "packages")


def solve(home: Path, *arguments: str, packages: Path | None = None, **environment: str) -> tuple[int, str, str]:
    paths = os.pathsep.join(filter(None, [str(packages or ""), os.environ.get("PYTHONPATH", "")]))
    variables = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TRACKED": str(home / "calls")} | environment
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "solve.py"), *arguments, "hydra.run.dir=run"],
        cwd=home, env=variables, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_trackers_get_settings_each_problem_and_the_summary(tmp_path: Path, stand_ins: Path) -> None:
    code, out, err = solve(tmp_path, *SOLVE, "log_to=[wandb,mlflow]", packages=stand_ins)
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])

    (_, name, config), *logged, (_, numbers), last = read_calls(tmp_path / "calls", "wandb")
    assert name.endswith("/run")
    assert config["search.n"] == 2
    assert config["run.task"] == "synthetic"
    assert [step for _, _, step in logged] == [1, 2, 3]
    tokens = [values["tokens"] for _, values, _ in logged]
    assert tokens == sorted(tokens)
    assert tokens[-1] == summary["usage"]["tokens"] == numbers["usage.tokens"]
    assert logged[-1][1]["accuracy"] == pytest.approx(summary["metrics"]["chosen"]["value"], abs=1e-6)
    assert sum(values["problem/tokens"] for _, values, _ in logged) == tokens[-1]
    assert last == ["finish"]

    calls = read_calls(tmp_path / "calls", "mlflow")
    parameters = {name: value for call in calls if call[0] == "log_params" for name, value in call[1].items()}
    assert parameters["search.n"] == "2"
    assert calls[-2][1]["summary.metrics.maj_at_2.value"] == summary["metrics"]["maj@2"]["value"]
    assert calls[-1] == ["end_run"]


def test_tracker_that_fails_is_given_up_and_the_run_goes_on(tmp_path: Path, stand_ins: Path) -> None:
    code, out, err = solve(tmp_path, *SOLVE, "log_to=[wandb]", packages=stand_ins, BROKEN_TRACKER="1")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["problems"] == 3
    assert "log_to=wandb failed and gets nothing more of this run (the server is gone)" in out + err
    assert [call[0] for call in read_calls(tmp_path / "calls", "wandb")] == ["init", "log"]


def test_tracker_that_does_not_connect_ends_the_command_before_a_model_loads(tmp_path: Path, stand_ins: Path) -> None:
    code, _, err = solve(tmp_path, *SOLVE, "log_to=[wandb]", packages=stand_ins, NO_LOGIN="1")
    assert code == 2
    assert "solve: log_to=[wandb] cannot connect (not logged in)" in err
    assert "loading model" not in err


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"log_to=\[wandb\] needs a package that is not installed: pip install wandb"):
        require_loggers(["wandb"])


def test_unknown_tracker_is_named_before_a_model_loads(tmp_path: Path) -> None:
    code, _, err = solve(tmp_path, *SOLVE, "log_to=[tensorbord]")
    assert code == 2
    assert "solve: log_to=[tensorbord] is no logger (did you mean tensorboard?)" in err
    code, _, err = solve(tmp_path, *SOLVE, "log_to=wandb")
    assert "log_to must be a list, as log_to=[tensorboard], got 'wandb'" in err
    assert "loading" not in err


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("no tensorboard: pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    code, out, err = solve(tmp_path, *SOLVE, "log_to=[tensorboard]")
    assert code == 0, err
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    summary = json.loads(out.splitlines()[-1])
    assert [event.step for event in events.Scalars("accuracy")] == [1, 2, 3]
    assert events.Scalars("tokens")[-1].value == summary["usage"]["tokens"]
    assert events.Scalars("summary/usage.tokens")[0].value == summary["usage"]["tokens"]
    assert b"search.n" in events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0]
