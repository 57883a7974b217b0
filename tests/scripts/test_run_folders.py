"""The solve program and the folder it writes into: links, full disks, closed pipes, two processes at once."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import SCRIPTS

SCRIPT = SCRIPTS / "solve.py"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
PROBLEMS = 12
TIMEOUT = 300


@pytest.fixture(scope="module")
def settings(tiny_writer: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = tmp_path_factory.mktemp("data") / "problems.jsonl"
    rows = [{"id": i, "problem": f"What is {i}+1?", "answer": str(i % 4)} for i in range(PROBLEMS)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = [f"model.path={tiny_writer}", "scorer=expectation", f"scorer.path={tiny_writer}"]
    return [*model, "search.n=4", "search.sampling.max_tokens=40", "+task=aime", f"task.path={file}"]


def run(folder: Path, *arguments: str, limits: Callable[[], None] | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT, preexec_fn=limits,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def unbroken(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    code, _, err = run(folder, *settings, "hydra.run.dir=run")
    assert code == 0, err
    return folder / "run"


@pytest.fixture
def begun(unbroken: Path, tmp_path: Path) -> Path:
    """A copy of the run, with the last rows missing."""
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    rows = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    (folder / "results.jsonl").write_text("".join(rows[: PROBLEMS // 2]))
    return folder


def answers(folder: Path) -> dict[str, str]:
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len(rows) == len({row["id"] for row in rows})
    return {row["id"]: row["text"] for row in rows}


def assert_refused(code: int, out: str, err: str, reason: str) -> None:
    """Asserts one sentence and exit code 2, before the first line of a run is printed."""
    assert (code, out) == (2, "")
    assert err.startswith("solve: ")
    assert reason in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["results.jsonl", ".summary.json.part", "solve.log", "trees"])
def test_link_in_the_folder_of_a_run_is_refused_before_a_model_loads(begun: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    if (begun / name).exists():
        (begun / name).rename(outside)
    else:
        outside.write_text("old")
    before = sorted(outside.iterdir()) if outside.is_dir() else outside.read_bytes()
    (begun / name).symlink_to(outside)
    assert_refused(*run(tmp_path, "resume=run"), f"run/{name} is a symbolic link")
    assert before == (sorted(outside.iterdir()) if outside.is_dir() else outside.read_bytes())


def test_link_that_hydra_would_write_through_is_refused(settings: list[str], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("old")
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    (tmp_path / "run" / ".hydra" / "config.yaml").symlink_to(victim)
    assert_refused(*run(tmp_path, *settings, "hydra.run.dir=run"), "config.yaml is a symbolic link")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "multirun.yaml").symlink_to(victim)
    sweep = ["search.n=1,2", "hydra.sweep.dir=sweep"]
    assert_refused(*run(tmp_path, "-m", *settings, *sweep), "multirun.yaml is a symbolic link")
    assert victim.read_text() == "old"


def test_pipe_in_the_folder_of_a_run_does_not_hang(begun: Path, tmp_path: Path) -> None:
    for name in ("results.jsonl", "run.json"):
        (begun / name).rename(tmp_path / "aside")
        os.mkfifo(begun / name)
        assert_refused(*run(tmp_path, "resume=run"), f"run/{name} is not a regular file")
        (tmp_path / "aside").replace(begun / name)


def test_broken_row_and_edited_settings_are_refused_before_a_model_loads(begun: Path, tmp_path: Path) -> None:
    results = begun / "results.jsonl"
    rows = results.read_text()
    results.write_text(f'{{"id": ["a"]}}\n{rows}')
    code, _, err = run(tmp_path, "resume=run")
    assert code == 2
    assert err.startswith("solve: run/results.jsonl, line 1: not a result row (id must be str")
    results.write_text(rows.replace('"config": "', '"config": "0'))
    code, _, err = run(tmp_path, "resume=run")
    assert code == 2
    assert "is not of this run" in err
    results.write_text(rows)
    (begun / "run.json").write_text((begun / "run.json").read_text().replace('"max_tokens": 40', '"max_tokens": 41'))
    assert_refused(*run(tmp_path, "resume=run"), "sampling.max_tokens is now 41")


@pytest.mark.parametrize("place", ["file", "file/below/it", "/proc/no/such"])
def test_output_folder_that_cannot_be_made_is_one_sentence(settings: list[str], tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(*run(tmp_path, *settings, f"hydra.run.dir={place}"), place)


def test_disk_that_fills_up_ends_the_run_with_exit_code_3_and_it_can_be_resumed(
    settings: list[str], unbroken: Path, tmp_path: Path
) -> None:
    largest = (unbroken / "run.json").stat().st_size + 1000

    def limit_files() -> None:
        """No file may become larger: a write fails half-way, as on a full disk."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    code, _, err = run(tmp_path, *settings, "hydra.run.dir=run", limits=limit_files)
    assert code == 3, err
    assert "solve: cannot write " in err
    assert "of 12 problems are saved, and the run ends here" in err
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "summary.json").exists()
    code, _, err = run(tmp_path, "resume=run")
    assert code == 0, err
    assert answers(tmp_path / "run") == answers(unbroken)


def test_reader_that_closes_the_pipe_ends_the_run_as_ctrl_c_does(settings: list[str], tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), *settings, "concurrency=1", "hydra.run.dir=run"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=TIMEOUT) == 141, err
    assert err.splitlines()[-1] == "solve: cannot print (Broken pipe)"
    assert "Traceback" not in err
    saved = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert saved["stopped"] == "interrupted"
    assert 1 <= saved["problems"] == len(answers(tmp_path / "run")) < PROBLEMS


def test_two_resumes_at_once_give_every_row_once(begun: Path, unbroken: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "resume=run"]
    both = [
        subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    errors = [process.communicate(timeout=TIMEOUT)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert answers(begun) == answers(unbroken)
    assert list(begun.rglob("*.part")) == []


@pytest.mark.parametrize("name", ["it's", "a,b=c", "é [x]", "back\\"])
def test_folder_of_any_name_is_resumed(begun: Path, unbroken: Path, tmp_path: Path, name: str) -> None:
    begun.rename(tmp_path / name)
    code, _, err = run(tmp_path, f"resume={name}")
    assert code == 0, err
    assert answers(tmp_path / name) == answers(unbroken)
