"""Problems of a user's file are read from the fields that the settings name; errors name file, line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reason import ConfigError
from reason.config.compose import compose_settings
from reason.settings.validate import validate_settings
from reason.tasks.base import Task
from reason.tasks.rows import InvalidRow, read_rows
from reason.tasks.selection import select_task

ROWS: list[dict[str, Any]] = [
    {"prompt": "What is 1+1?", "target": 2, "key": "a", "level": "easy"},
    {"prompt": "What is 2+2?", "target": "4", "key": "b"},
]
NAMED = ("task.question_field=prompt", "task.answer_field=target", "task.id_field=key")


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    file = folder / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def load(*settings: str) -> Task:
    config, choices = compose_settings(["+task=file", *settings])
    return select_task(config, choices, validate_settings(config, choices).scorer)[0]


def test_fields_are_those_that_the_settings_name(tmp_path: Path) -> None:
    task = load(f"task.path={write(tmp_path, ROWS)}", *NAMED)
    assert (task.name, [problem.id for problem in task]) == ("sums", ["sums/a", "sums/b"])
    assert [(problem.question, problem.answer) for problem in task] == [("What is 1+1?", "2"), ("What is 2+2?", "4")]
    assert task[0].meta == {"key": "a", "level": "easy"}
    assert [str(task.grade_text(task[1], rf"so \boxed{{{n}}}")) for n in (4, 5)] == ["right", "wrong"]


def test_rows_need_neither_answers_nor_ids(tmp_path: Path) -> None:
    task = load(f"task.path={write(tmp_path, ROWS)}", "task.question_field=prompt", "task.answer_field=null")
    assert [(problem.id, problem.answer) for problem in task] == [("sums/0", None), ("sums/1", None)]
    assert str(task.grade(task[0], "2")) == "ungraded"


def test_table_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "sums.csv").write_text("prompt,target,key\nWhat is 1+1?,2,a\n")
    assert [problem.answer for problem in load(f"task.path={tmp_path}/sums.csv", *NAMED)] == ["2"]


@pytest.mark.parametrize(
    ("settings", "rows", "error"),
    [
        (NAMED[1:], ROWS, r"sums\.jsonl, line 1: no field 'question'.*; task\.question_field says which"),
        (NAMED, [*ROWS, {"prompt": "?", "key": "c"}], r"sums\.jsonl, line 3: no field 'target'; its fields are prompt"),
        (NAMED, [*ROWS, {"prompt": " ", "target": 1, "key": "c"}], r"line 3: no text in field 'prompt'"),
        (NAMED, [*ROWS, ROWS[0]], r"sums\.jsonl, line 3: field 'key' is 'a', as in line 1"),
        ((*NAMED, "task.question_field=null"), ROWS, r"task\.question_field must be the name of a field, got None"),
        ((*NAMED, "task.id_field=3"), ROWS, r"task\.id_field must be the name of a field, or null, got 3"),
        ((*NAMED, "task.path=null"), ROWS, r"task\.path must be a file with your problems"),
    ],
)
def test_error_names_file_line_and_field(
    tmp_path: Path, settings: tuple[str, ...], rows: list[dict[str, Any]], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        load(f"task.path={write(tmp_path, rows)}", *settings)


def test_table_row_with_more_fields_than_its_header_is_refused(tmp_path: Path) -> None:
    """A comma without quotes would cut the question, and make an answer of its end."""
    file = tmp_path / "rows.csv"
    file.write_text(",question,answer\n0,1+1?,2\n1,x0 = 3, modulo 19. Find x3.,15\n")
    with pytest.raises(InvalidRow, match=r"rows\.csv, line 3: more fields than the header names; put texts"):
        read_rows(file)
    file.write_text(",question,answer\n0,1+1?,2,,\n")
    assert [row.fields for row in read_rows(file)] == [{"question": "1+1?", "answer": "2"}]
