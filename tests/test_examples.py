"""The examples are short, run as they stand, and their settings work with every program that takes settings."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
LINES = {"add_a_task.py": 30, "add_a_strategy.py": 30, "add_particles.py": 60, "stop_when_sure.py": 60}
"""Lines of code that an example of a plug-in has less than."""


def run(*command: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", LINES)
def test_example_plug_in_code_is_short(name: str) -> None:
    code = (EXAMPLES / name).read_text(encoding="utf-8").split('"""\n', 1)[1].partition("\ndef main()")[0]
    assert len([line for line in code.splitlines() if line.strip()]) < LINES[name]


def test_task_example_runs_from_python(tmp_path: Path) -> None:
    lines = run(str(EXAMPLES / "add_a_task.py"), folder=tmp_path)
    assert [line.split()[0] for line in lines] == [f"terms/{i}" for i in range(4)]
    assert [line.split()[-1] for line in lines].count("right") >= 1


@pytest.mark.parametrize("name", ["add_a_strategy.py", "add_particles.py"])
def test_strategy_examples_run_from_python(name: str, tmp_path: Path) -> None:
    (lines,) = run(str(EXAMPLES / name), folder=tmp_path)
    assert re.fullmatch(r"\d+ \{.*\} \d+ steps, \d+ tokens", lines)


def test_sure_vote_example_cancels_what_it_does_not_need(tmp_path: Path) -> None:
    (line,) = run(str(EXAMPLES / "stop_when_sure.py"), folder=tmp_path)
    match = re.fullmatch(r"1 \{.*\} (\d+) cancelled, \d+ tokens", line)
    assert match is not None
    assert int(match[1]) > 0


@pytest.mark.parametrize(
    ("file", "settings"),
    [("add_particles.py", ["search=particles"]), ("stop_when_sure.py", ["search=sure_vote", "scorer=none"])],
)
def test_search_examples_run_by_their_settings(file: str, settings: list[str], tmp_path: Path) -> None:
    plugins = f"plugins=[{EXAMPLES / file}]"
    folder = ["--config-dir", str(EXAMPLES / "settings")]
    more = ["+task=synthetic", "task.size=2", "search.n=4", "speculation=off", "hydra.run.dir=run"]
    lines = run(str(ROOT / "scripts" / "solve.py"), *folder, plugins, *settings, *more, folder=tmp_path)
    summary = json.loads(lines[-1])
    assert (summary["search"], summary["problems"], summary["errors"]) == (settings[0][7:], 2, 0)


def test_watching_example_prints_the_search_and_draws_its_tree(tmp_path: Path) -> None:
    *lines, last = run(str(EXAMPLES / "watch_a_search.py"), folder=tmp_path)
    assert {line.split()[0] for line in lines} == {"step", "continued"}
    assert last.startswith("answer 15 of ")
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")


def test_example_of_functions_finds_the_answer_with_each(tmp_path: Path) -> None:
    lines = run(str(EXAMPLES / "functions.py"), folder=tmp_path)
    assert [line.split()[-1] for line in (lines[0], lines[2])] == ["15", "15"]
    assert "'15': 5.0" in lines[1]


def test_task_and_strategy_examples_run_by_their_settings(tmp_path: Path) -> None:
    """Both at once, from another folder than the repository's."""
    plugins = f"plugins=[{EXAMPLES}/add_a_task.py,{EXAMPLES}/add_a_strategy.py]"
    settings = [plugins, "+task=terms", "task.size=2", "search=above_average", "search.n=4", "speculation=off"]
    script = str(ROOT / "scripts" / "solve.py")
    lines = run(script, "--config-dir", str(EXAMPLES / "settings"), *settings, "hydra.run.dir=run", folder=tmp_path)
    summary = json.loads(lines[-1])
    assert (summary["task"], summary["search"], summary["problems"]) == ("terms", "above_average", 2)
    assert not summary["errors"]
    selections = [json.loads(file.read_text())["selections"] for file in (tmp_path / "run" / "trees").iterdir()]
    assert all(selections)


def test_library_example_runs(tmp_path: Path) -> None:
    lines = run(str(EXAMPLES / "library.py"), folder=tmp_path)
    assert lines[0].startswith("answer ")
    assert "the same question, the same text: True" in lines
    assert sum(line.startswith("mine/") for line in lines) == 3
    assert lines[-1].startswith("there is no setting search.widht")


@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="the openai package is not installed")
def test_agent_example_runs_against_a_server(tmp_path: Path) -> None:
    presets = "serve.presets=[best-of-4,beam-16]"
    command = [sys.executable, str(ROOT / "scripts" / "serve.py"), "serve.port=0", presets, "speculation=off"]
    server = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = next(line.split()[-1] for line in server.stdout if line.startswith("base url "))
        lines = run(str(EXAMPLES / "agent.py"), url, folder=tmp_path)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert sum(line.startswith("best-of-4: score ") for line in lines) == 2
    answers = [line for line in lines if "\\boxed{" in line]
    assert ["\\boxed{15}" in answers[0], "\\boxed{2}" in answers[1]] == [True, True]
