"""Text that is not Unicode is refused where it comes in, by the name of its field, before a model loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decoding.core import SamplingParams
from decoding.validation import InvalidText, require_text
from reason import ConfigError
from reason.bench.replay import read_recordings
from reason.config.compose import compose_settings
from reason.problem import Problem
from reason.prompt import PromptFormat
from reason.settings.validate import validate_settings
from reason.tasks import hub
from reason.tasks.gpqa import Gpqa
from reason.tasks.math500 import Math500
from reason.tasks.rows import DatasetRow, InvalidRow, read_rows
from tests.support.paths import ROOT
from tests.support.toy_solver import toy_solver

HALF, PLACE = "x\ud800", r"must be Unicode text, got the lone surrogate '\\ud800' at position 1$"
BYTE = r"must be Unicode text, got the byte 0xff at position 2$"


@pytest.mark.parametrize("text", ["", "a", "é", "\0", "\U0010ffff", "\ufffe", 3, None, {"a": ["b", 1.5]}, ("x",)])
def test_unicode_and_other_values_pass(text: object) -> None:
    require_text("text", text)


def test_nesting_costs_no_recursion() -> None:
    value: Any = HALF
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidText):
        require_text("deep", value)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Problem.from_question(HALF), "question"),
        (lambda: Problem(id="1", question=HALF), "question"),
        (lambda: Problem(id=HALF, question="1+1?"), "id"),
        (lambda: Problem(id="1", question="1+1?", answer=HALF), "answer"),
        (lambda: Problem(id="1", question="1+1?", meta={"choices": ["a", HALF]}), "meta.choices.1"),
        (lambda: SamplingParams(stop=("a", HALF)), "stop.1"),
        (lambda: PromptFormat(system=HALF), "model.prompt.system"),
        (lambda: PromptFormat(raw="{question}" + HALF[1:]), "model.prompt.raw"),
        (lambda: PromptFormat(delimiter=HALF), "model.prompt.delimiter"),
    ],
)
def test_library_refuses_it(make: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidText, match=rf"^{field} must be Unicode text, got the lone surrogate") as refusal:
        make()
    assert refusal.value.field == field


def test_solver_refuses_it_and_what_is_no_text() -> None:
    with toy_solver() as solver:
        with pytest.raises(ValueError, match=f"^question {PLACE}"):
            solver.solve(HALF)
        for wrong in (3, None, b"1+1?", ["1+1?"]):
            with pytest.raises(ValueError, match="question must be a text, got"):
                solver.solve(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"^question {PLACE}"):
            list(solver.solve_many(["1+1?", HALF]))
        assert solver.solve("1\0+1?").answer is not None


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ([], "question"),
        ([], "search.sampling.stop.0"),
        ([], "model.prompt.raw"),
        ([], "model.prompt.delimiter"),
        ([], "model.path"),
        (["router=cue"], "router.cues.0"),
        (["scorer=token_classification"], "scorer.adapter.separator"),
        (["+task=math500", "task.path=x"], "task.path"),
    ],
)
def test_settings_with_it_are_refused(settings: list[str], path: str) -> None:
    config, choices = compose_settings(settings)
    *parents, last = path.split(".")
    node: Any = config
    for key in parents:
        node = node[key]
    if last == "0":
        node[:] = [HALF]
    else:
        node[last] = HALF
    with pytest.raises(ConfigError, match=rf"^{path} {PLACE}"):
        validate_settings(config, choices)


ROW = {"problem": "1+1?", "answer": "2"}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", json.dumps(ROW) + "\n" + json.dumps(ROW | {"problem": HALF}), rf"line 2: problem {PLACE}"),
        ("a.jsonl", json.dumps(ROW | {"source": {"by": [HALF]}}), rf"line 1: source\.by\.0 {PLACE}"),
        ("a.jsonl", json.dumps(ROW | {HALF: 1}), rf"line 1: a name {PLACE}"),
        ("a.json", json.dumps([ROW, ROW | {"answer": HALF}]), rf"line 2: answer {PLACE}"),
        ("a.jsonl", b'{"problem": "1?\xff", "answer": "2"}', rf"line 1: problem {BYTE}"),
        ("a.json", b'[{"problem": "1?\xff", "answer": "2"}]', rf"line 1: problem {BYTE}"),
        ("a.csv", b"problem,answer\n1+1?,2\n1?\xff,2\n", rf"line 3: problem {BYTE}"),
        ("a.jsonl", b"\xff\n", "line 1: not JSON"),
        ("a.jsonl", json.dumps(ROW) + "\n" + "[" * 30_000, "line 2: not JSON"),
        ("a.jsonl", '{"problem": "1?", "answer": ' + "9" * 5000 + "}", "line 1: not JSON"),
    ],
)
def test_data_file_with_it_is_refused_by_line_and_field(
    tmp_path: Path, name: str, content: str | bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidRow, match=rf"{name}, {complaint}"):
        Math500(path=str(tmp_path / name))


def test_row_of_the_hub_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*_: object) -> list[DatasetRow]:
        return [DatasetRow({"question": "Which?", "choices": ["a", HALF], "answer": "A"}, "Idavidrein/gpqa", 1, 0)]

    monkeypatch.setattr(hub, "hub_rows", rows)
    with pytest.raises(InvalidRow, match=rf"^Idavidrein/gpqa, line 1: choices\.1 {PLACE}"):
        Gpqa()


def test_recordings_of_a_benchmark_are_checked_too(tmp_path: Path) -> None:
    file = tmp_path / "recordings.jsonl"
    file.write_text(json.dumps({"problem": "1+1?", "samples": ["2", HALF]}))
    with pytest.raises(ValueError, match=rf"recordings\.jsonl:1: sample\.1 {PLACE}"):
        read_recordings(file)


def test_valid_unicode_of_every_kind_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"problem": "\U0001d7d9 + \U0001d7d9 \0 \ufffe?", "answer": "2"}))
    assert len(read_rows(file)) == 1


@pytest.mark.parametrize("setting", [b"question=1?\xff", b"+task=math500"])
def test_command_ends_with_one_sentence_before_a_model_loads(tmp_path: Path, setting: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"problem": "1?\xff", "answer": "2"}')
    more = [b"task.path=a.jsonl"] if setting.startswith(b"+task") else []
    # no such model: loading it would be another error
    command: list[str | bytes] = [
        sys.executable,
        str(ROOT / "scripts" / "solve.py"),
        setting,
        *more,
        "search=self_consistency",
        "scorer=none",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    where = "solve: task: a.jsonl, line 1: problem" if more else "solve: question"
    assert done.stderr.splitlines() == [f"{where} must be Unicode text, got the byte 0xff at position 2"]
