"""Problems of your own from a file whose fields have any names.

{"prompt": "What is 1+1?", "target": "2", "key": "sum-1"}

task.question_field=prompt task.answer_field=target task.id_field=key
"""

from __future__ import annotations

from pathlib import Path

from reason.problem import Problem
from reason.tasks.base import Task, validate_subset
from reason.tasks.rows import DatasetRow, InvalidRow, read_rows


class FileTask(Task):
    """Problems from `path`, a file of rows; a run names the task as the file.

    question_field  field with the question
    answer_field    field with the gold answer; None: no row has one, and nothing is graded
    id_field        field with the id of a problem; None: the number of its row, from 0

    Raises: ValueError naming the setting, DataUnavailable, InvalidRow naming the file, the line and the field.
    """

    def __init__(
        self,
        *,
        path: str | None = None,
        question_field: str = "question",
        answer_field: str | None = "answer",
        id_field: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        shuffle_seed: int | None = None,
    ) -> None:
        validate_subset(limit=limit, offset=offset, shuffle_seed=shuffle_seed)
        if path is None:
            raise ValueError("task.path must be a file with your problems, FILE.jsonl, .json, .csv or .parquet")
        for name, field in (("question_field", question_field), ("answer_field", answer_field), ("id_field", id_field)):
            may_be_null = ", or null" if name != "question_field" else ""
            if not (isinstance(field, str) and field) and not (may_be_null and field is None):
                raise ValueError(f"task.{name} must be the name of a field{may_be_null}, got {field!r}")
        name = Path(path).stem
        lines: dict[str, int] = {}
        problems = []
        for row in read_rows(path):
            identity = str(row.index) if id_field is None else _read_text(row, "id_field", id_field)
            if identity in lines:
                raise row.invalid_row(f"field {id_field!r} is {identity!r}, as in line {lines[identity]}")
            lines[identity] = row.line
            problems.append(_make_problem(row, f"{name}/{identity}", question_field, answer_field))
        super().__init__(name, problems, limit=limit, offset=offset, shuffle_seed=shuffle_seed)


def _make_problem(row: DatasetRow, identity: str, question_field: str, answer_field: str | None) -> Problem:
    return Problem(
        id=identity,
        question=_read_text(row, "question_field", question_field),
        answer=None if answer_field is None else _read_text(row, "answer_field", answer_field),
        meta=row.other_fields(question_field, *([] if answer_field is None else [answer_field])),
    )


def _read_text(row: DatasetRow, setting: str, field: str) -> str:
    try:
        return row.require_text(field)
    except InvalidRow as error:
        raise InvalidRow(f"{error}; task.{setting} says which") from None
