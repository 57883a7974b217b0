"""The solve program from outside: its output, its files, and resuming after it was killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from reason.commands.solve import quote_question
from reason.config import compose
from reason.runs.result import UNSTABLE_USAGE_FIELDS
from tests.support.paths import SCRIPTS

SCRIPT = SCRIPTS / "solve.py"
PROBLEMS = 40
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}


@pytest.fixture(scope="module")
def settings(tiny_writer: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = tmp_path_factory.mktemp("data") / "problems.jsonl"
    rows = [{"id": i, "problem": f"What is {i}+1?", "answer": str(i % 4)} for i in range(PROBLEMS)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = ["+task=aime", f"task.path={file}"]
    return [
        f"model.path={tiny_writer}",
        "scorer=expectation",
        f"scorer.path={tiny_writer}",
        "search.sampling.max_tokens=60",
        *task,
    ]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    pipe = subprocess.PIPE
    # A suite that runs in the background ignores Ctrl-C, and so would what it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def summary(out: str) -> dict[str, Any]:
    last: dict[str, Any] = json.loads(out.splitlines()[-1])
    return last


def steady(folder: Path) -> list[dict[str, Any]]:
    """The rows without fields that depend on time, on speculation, or on rounding in a batch of another shape."""
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for row in rows:
        for part in UNSTABLE_USAGE_FIELDS:
            del row["usage"][part]
        del row["accepted_length"]
        row["versions"].pop("git", None)  # there may be a commit between two runs
        row["score"] = round(row["score"], 4)
        row["votes"] = {answer: round(votes, 4) for answer, votes in row["votes"].items()}
        for sample in row["samples"]:
            sample["score"] = round(sample["score"], 4)
            sample["step_scores"] = [round(score, 4) for score in sample["step_scores"]]
    return rows


@pytest.fixture(scope="module")
def unbroken(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("unbroken")
    code, out, err = run(folder, *settings, "hydra.run.dir=run")
    assert code == 0, err
    return folder / "run", out


def test_solve_prints_the_run_first_and_one_json_object_last(unbroken: tuple[Path, str]) -> None:
    folder, out = unbroken
    first = out.splitlines()[0]
    assert first.startswith("model bundled (")
    assert "search best_of_n, scorer expectation (" in first
    assert first.endswith(f"data: aime24 ({PROBLEMS} problems)")
    assert summary(out) == json.loads((folder / "summary.json").read_text())
    assert summary(out)["problems"] == PROBLEMS


def test_run_folder_has_results_trees_settings_and_versions(unbroken: tuple[Path, str]) -> None:
    folder, _ = unbroken
    rows = steady(folder)
    assert [row["id"] for row in rows] == [f"aime24/{i}" for i in range(PROBLEMS)]
    assert len(list((folder / "trees").glob("*.json"))) == PROBLEMS
    saved = json.loads((folder / "run.json").read_text())
    assert saved["config"]["search"]["n"] == 16
    assert {"reason", "python", "torch", "transformers"} <= rows[0]["versions"].keys()
    assert rows[0]["config"] == saved["about"]["config"]


def test_run_log_has_a_line_of_json_for_every_problem(unbroken: tuple[Path, str]) -> None:
    lines = [json.loads(line) for line in (unbroken[0] / "solve.log").read_text().splitlines()]
    done = [line for line in lines if line["message"] == "problem done"]
    assert sorted(line["problem"] for line in done) == sorted(f"aime24/{i}" for i in range(PROBLEMS))
    assert all(line["time"] and line["level"] == "INFO" and line["tokens"] > 0 for line in done)


def test_killed_and_resumed_run_has_the_same_rows(
    settings: list[str], unbroken: tuple[Path, str], tmp_path: Path
) -> None:
    process = start(tmp_path, *settings, "hydra.run.dir=run")
    wait_for_rows(tmp_path / "run", 5, process)
    process.kill()
    process.wait()
    results = tmp_path / "run" / "results.jsonl"
    before = results.read_bytes().count(b"\n")
    assert 0 < before < PROBLEMS
    with results.open("a") as file:
        file.write('{"id": "aime24/39", "ques')
    code, out, err = run(tmp_path, "resume=run")
    assert code == 0, err
    assert summary(out)["resumed"] == before
    assert steady(tmp_path / "run") == steady(unbroken[0])
    assert summary(out)["metrics"] == summary(unbroken[1])["metrics"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_its_rows_and_a_summary(
    how: signal.Signals, settings: list[str], tmp_path: Path
) -> None:
    process = start(tmp_path, *settings, "hydra.run.dir=run")
    wait_for_rows(tmp_path / "run", 3, process)
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert summary(out)["stopped"] == "interrupted"
    assert 3 <= summary(out)["problems"] == len(steady(tmp_path / "run")) < PROBLEMS
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary(out)
    (line,) = [line for line in out.splitlines() if line.startswith("to finish this run: ")]
    typed = shlex.split(line.partition(": ")[2])
    assert typed == ["python", "scripts/solve.py", f"resume={tmp_path / 'run'}"]
    code, out, err = run(tmp_path, *typed[2:])
    assert code == 0, err
    assert summary(out)["problems"] == PROBLEMS
    assert "to finish this run" not in out


def test_resume_with_other_settings_names_them(settings: list[str], unbroken: tuple[Path, str]) -> None:
    code, _, err = run(unbroken[0].parent, *settings, "search.n=3", "resume=run")
    assert code == 2
    assert err.strip() == "solve: these settings are not those of the run to resume: search.n was 16, now 3"


def test_solve_prints_solution_score_and_votes_of_a_question(settings: list[str], tmp_path: Path) -> None:
    code, out, err = run(tmp_path, *settings[:3], "question='What is 1+1?'", "search.n=6")
    assert code == 0, err
    assert "answer " in out
    assert "score 0." in out
    assert "best score of each answer  " in out
    assert summary(out)["task"] == "question"


def test_stand_in_task_is_named_in_the_first_line_and_in_every_row(settings: list[str], tmp_path: Path) -> None:
    code, out, err = run(tmp_path, *settings[:3], "+task=aime", "limit=2", "search.n=2", "hydra.run.dir=run")
    assert code == 0, err
    assert "standing in for aime" in out.splitlines()[0]
    assert {(row["task"], row["stands_in_for"]) for row in steady(tmp_path / "run")} == {("synthetic_aime", "aime")}


@pytest.mark.parametrize("launcher", ["basic", "joblib", "submitit_local"])
def test_wrong_job_of_a_sweep_is_reported_and_the_others_run(
    launcher: str, settings: list[str], tmp_path: Path
) -> None:
    sweep = ["search.n=0,1", "limit=1", "hydra.sweep.dir=sweep", f"hydra/launcher={launcher}"]
    code, _, err = run(tmp_path, "-m", *settings, *sweep)
    assert code == 2
    logs = [err, *(log.read_text() for log in tmp_path.glob("sweep/.submitit/*/*.err"))]
    assert "solve: search.n must be an int >= 1, got 0" in "".join(logs)
    refused = json.loads((tmp_path / "sweep" / "0" / "refused.json").read_text())
    assert refused == {
        "overrides": [*settings, "search.n=0", "limit=1"],
        "error": "search.n must be an int >= 1, got 0",
    }
    assert (tmp_path / "sweep" / "1" / "summary.json").exists()


def test_sweep_runs_every_combination(settings: list[str], tmp_path: Path) -> None:
    sweep = ["search=best_of_n,self_consistency", "search.n=2", "limit=2", "hydra.sweep.dir=sweep"]
    code, _, err = run(tmp_path, "-m", *settings, *sweep)
    assert code == 0, err
    summaries = [json.loads((tmp_path / "sweep" / job / "summary.json").read_text()) for job in "01"]
    assert [(s["search"], s["problems"]) for s in summaries] == [("best_of_n", 2), ("self_consistency", 2)]


@pytest.mark.parametrize(
    "wrong", ["search=foo", "search.n=0", "model.path=/no/such", "search.widht=2", "resume=/no/such"]
)
def test_solve_reports_wrong_settings_in_one_sentence_with_exit_code_2(wrong: str, tmp_path: Path) -> None:
    code, out, err = run(tmp_path, wrong)
    assert (code, out) == (2, "")
    assert err.startswith("solve: ")
    assert len(err.splitlines()) == 1


def wait_for_rows(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    results = folder / "results.jsonl"
    for _ in range(6000):
        if results.exists() and results.read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    raise AssertionError("no rows")


@pytest.mark.parametrize("question", ["x0 = 5, find [x]", "it's 3 = 4?", "a\\", "a\\'b \\frac{1}{2}", "{x} $5$", "3"])
def test_question_may_hold_hydra_syntax(question: str) -> None:
    """Hydra alone refuses `question="x0 = 5. Find x2."` with a parse error."""
    config, _ = compose.compose_settings(quote_question([f"question={question}"]))
    assert config["question"] == question
