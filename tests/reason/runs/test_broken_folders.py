"""A report and an export over broken folders name what is broken, and report the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reason.problem import Problem
from reason.runs import resume
from reason.runs.export_trees import export_trees
from reason.runs.gather import find_runs
from reason.runs.run import TaskRun
from reason.tasks.base import Task
from tests.support.paths import SCRIPTS
from tests.support.toy_solver import toy_solver

REPORT = [sys.executable, str(SCRIPTS / "report.py")]


def make_run(folder: Path) -> Path:
    """Writes the folder of a finished run."""
    folder.mkdir(parents=True)
    resume.save_settings(folder, config={"search": {"n": 4}}, choices={"search": "best_of_n"}, about={"task": "toy"})
    problems = [Problem(id=f"p{i}", question=f"What is {i}?", answer="1") for i in range(2)]
    with toy_solver() as solver:
        run = TaskRun(solver, Task("toy", problems), folder, run_metadata={"task": "toy"})
        list(run.solve_missing())
        run.finish_run()
    (folder / "summary.json").write_text('{"stopped": "done"}')
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("broken", "whole"):
        make_run(tmp_path / "runs" / name)
    return tmp_path / "runs"


def append(name: str, text: str) -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        with (folder / name).open("a") as file:
            file.write(text)

    return act


def replace(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def link(name: str) -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        (folder / name).rename(folder / "other")
        (folder / name).symlink_to("other")

    return act


def pipe(name: str) -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return act


def refuse(text: str) -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        (folder / "run.json").unlink()
        (folder / "refused.json").write_text(text)

    return act


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (append("results.jsonl", '{"id": ["p1"]}\n'), "line 3: not a result row (id must be str"),
        (append("results.jsonl", '{"id": "p1", "score": "high"}\n'), "score must be float or null"),
        (append("results.jsonl", "[]\n"), "it is not an object"),
        (replace("run.json", "[]"), "cannot read run.json (it is not an object)"),
        (replace("run.json", ""), "cannot read run.json"),
        (replace("run.json", "[" * 100_000), "nested too deeply"),
        (replace("summary.json", "[]"), "summary.json: not a summary"),
        (replace("summary.json", '{"stopped": 4}'), "summary.json: not a summary"),
        (pipe("results.jsonl"), "results.jsonl is not a regular file"),
        (pipe("run.json"), "run.json is not a regular file"),
        (link("results.jsonl"), "results.jsonl is a symbolic link"),
        (refuse("[]"), "cannot read refused.json"),
        (refuse('{"overrides": 4, "error": "x"}'), "cannot read refused.json"),
    ],
)
def test_broken_run_is_listed_with_the_reason_and_the_others_are_measured(
    runs: Path, attack: Callable[[Path], object], reason: str
) -> None:
    attack(runs / "broken")
    broken, whole = find_runs([runs])
    assert broken.measured is None
    assert reason in str(broken.broken)
    assert whole.broken is None
    assert whole.measured is not None


def test_run_with_edited_settings_is_listed_as_such(runs: Path) -> None:
    file = runs / "broken" / "run.json"
    file.write_text(file.read_text().replace('"n": 4', '"n": 8'))
    assert "search.n is now 8" in str(find_runs([runs])[0].broken)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"nodes": []}',
        '{"root": [1], "nodes": [{"parent": 5}]}',
        '{"root": 4, "nodes": 4}',
        "[" * 100_000,
    ],
)
def test_broken_tree_is_named(runs: Path, tmp_path: Path, text: str) -> None:
    tree = sorted((runs / "whole" / "trees").iterdir())[0]
    tree.write_text(text)
    with pytest.raises(ValueError, match=f"{tree.name}: not a tree") as error:
        export_trees(runs / "whole", tmp_path / "out", "dot")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("node", [1000, -2])
@pytest.mark.parametrize("field", ["parent", "best"])
def test_tree_with_a_node_that_is_not_there_is_named(runs: Path, tmp_path: Path, field: str, node: int) -> None:
    file = sorted((runs / "whole" / "trees").iterdir())[0]
    record = json.loads(file.read_text())
    (record if field == "best" else record["nodes"][-1])[field] = node
    file.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="not a tree"):
        export_trees(runs / "whole", tmp_path / "out", "dot")


def test_report_and_export_do_not_write_through_a_link(runs: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("old")
    for name, command in (("report.html", [str(runs)]), ("report.md", [str(runs)])):
        (runs / name).unlink(missing_ok=True)
        (runs / name).symlink_to(victim)
        done = subprocess.run([*REPORT, *command], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 2
        assert f"report: {runs / name} is a symbolic link" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        (runs / name).unlink()
    tree = sorted((runs / "whole" / "trees").glob("*.json"))[0]
    tree.with_suffix(".graphml").symlink_to(victim)
    command = [*REPORT, "trees", str(runs / "whole")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "is a symbolic link" in done.stderr
    assert victim.read_text() == "old"


def test_report_that_cannot_be_written_is_one_sentence(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [*REPORT, str(runs), "--out", str(tmp_path / "file" / "report.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("report: ")
    assert len(done.stderr.splitlines()) == 1
