"""Programs are graded by running their tests, within limits, and only where that was asked for."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from reason.config.compose import instantiate, load_option
from reason.tasks.code import CodeTask, find_program
from reason.tasks.programs import ProgramRunner, find_isolation
from reason.tasks.rows import InvalidRow

ADD = {"prompt": "Write add(a, b).", "tests": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"], "id": "add"}
RIGHT = "def add(a, b):\n    return a + b\n"


def write_rows(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make_task(folder: Path, *rows: dict[str, Any], **settings: Any) -> CodeTask:
    return CodeTask(path=write_rows(folder, *(rows or (ADD,))), **({"run_code": True} | settings))


def fence(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\n"


@pytest.fixture
def runner() -> ProgramRunner:
    return ProgramRunner(timeout_s=2, memory_mib=256)


def test_program_is_right_if_all_tests_pass(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    (problem,) = task
    assert str(task.grade_text(problem, fence(RIGHT))) == "right"
    one_fails = fence("def add(a, b):\n    return abs(a) + abs(b)")
    assert str(task.grade_text(problem, one_fails)) == "wrong"
    assert task.grade_text(problem, one_fails).reason == "AssertionError (tests, line 2)"
    assert str(task.grade_text(problem, RIGHT)) == "no_answer"  # no block
    assert str(task.grade_text(problem, fence("def add(a, b:"))) == "wrong"


def test_published_fields_are_read(tmp_path: Path) -> None:
    human_eval = {
        "task_id": "HumanEval/0",
        "prompt": "def add(a, b):\n    '''Adds.'''\n",
        "entry_point": "add",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    }
    mbpp = {"text": "Add.", "test_setup_code": "ONE = 1", "test_list": ["assert add(ONE, 2) == 3"]}
    task = make_task(tmp_path, human_eval, mbpp)
    assert [problem.id for problem in task] == ["code/HumanEval/0", "code/1"]
    assert [str(task.grade_text(problem, fence(RIGHT))) for problem in task] == ["right", "right"]
    wrong = fence("def add(a, b):\n    return 4")
    assert [str(task.grade_text(problem, wrong)) for problem in task] == ["wrong", "wrong"]


def test_program_runs_as_python_runs_it(runner: ProgramRunner) -> None:
    record = "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int"
    assert runner.find_failure(record, "assert P(3).x == 3") is None
    assert runner.find_failure("def first(x: int): return x", "assert first.__annotations__['x'] is int") is None
    unknown = runner.find_failure("def first(x: List[int]): return x[0]", "assert first([3]) == 3")
    assert unknown == "NameError: name 'List' is not defined (program, line 1)"
    future = "from __future__ import annotations\ndef first(x: List[int]): return x[0] + ONE"
    assert runner.find_failure(future, "assert first([3]) == 4", setup="ONE = 1") is None


def test_nothing_runs_unless_it_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = tmp_path / "ran"
    with caplog.at_level(logging.WARNING):
        task = make_task(tmp_path, run_code=False)
    (problem,) = task
    grade = task.grade_text(problem, fence(f"open({str(trace)!r}, 'w').close()\n{RIGHT}"))
    assert grade.is_correct is None
    assert not trace.exists()
    assert "task.run_code=true" in caplog.text
    assert not load_option("task", "code")["run_code"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("while True: pass", "ended|no end"),
        ("import time\ntime.sleep(60)", "no end within 2 s"),
        ("x = bytearray(1 << 30)", "MemoryError"),
        ("import os\nos.kill(os.getpid(), 9)", "ended before"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("print('{\"passed\": true}')\nraise ValueError('a\\nb')", r"ValueError: a \(program, line 2\)"),
        ("open('big', 'wb').write(bytes(1 << 25))", "OSError|ended"),
        ("def f(): f()\nf()", "RecursionError"),
    ],
)
def test_program_that_misbehaves_fails(runner: ProgramRunner, program: str, reason: str) -> None:
    failure = runner.find_failure(program, "pass")
    assert failure is not None
    assert re.search(reason, failure), failure


def test_child_of_a_program_ends_with_it(runner: ProgramRunner, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = f"import subprocess\np = subprocess.Popen(['sleep', '300'])\nopen({str(note)!r}, 'w').write(str(p.pid))"
    assert runner.find_failure(program, "pass") is None
    state = Path(f"/proc/{note.read_text()}/stat")
    end = time.monotonic() + 30
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < end, "the child goes on"
        time.sleep(0.05)


def test_environment_and_network_are_not_given(runner: ProgramRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "x")
    assert runner.find_failure("import os", "assert 'SECRET_KEY' not in os.environ and not os.listdir()") is None
    if not find_isolation():
        pytest.skip("no network namespaces here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        reach = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)"
        failure = runner.find_failure(reach, "pass")
    assert failure is not None
    assert "OSError" in failure


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "x"}, "line 1: no field 'tests'"),
        ({"prompt": "x", "tests": []}, "must be a text or a list"),
        ({"prompt": "x", "tests": "assert ("}, "is no Python"),
        ({"tests": "pass"}, "no field 'prompt'"),
    ],
)
def test_wrong_row_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRow, match=message):
        make_task(tmp_path, row)


@pytest.mark.parametrize(
    ("name", "value"), [("run_code", "yes"), ("timeout_s", 0), ("memory_mib", 1), ("path", None), ("limit", 0)]
)
def test_wrong_setting_is_named(tmp_path: Path, name: str, value: Any) -> None:
    settings = load_option("task", "code") | {"path": write_rows(tmp_path, ADD), name: value}
    with pytest.raises(ValueError, match=rf"task\.{name}"):
        instantiate("task", settings)


def test_votes_are_of_the_program_as_it_is_written(tmp_path: Path) -> None:
    (problem,) = make_task(tmp_path)
    assert problem.read_answer is not None
    assert problem.read_answer(fence(RIGHT)) == find_program(fence(RIGHT)) == RIGHT + "\n"
    assert problem.answer == "\n".join(ADD["tests"])
    assert problem.question == ADD["prompt"]
