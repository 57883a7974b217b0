"""Rows of a data set from a file: JSONL, JSON, CSV or Parquet, each knowing where it stands."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class DataUnavailable(ValueError):
    """The data set is not to be had; the message says in one sentence which file to give instead."""


class BadRow(ValueError):
    """A row is not what the task needs; the message names the file, the line, the field and what was found."""


@dataclass(frozen=True)
class Row:
    """The fields of one row; `file` and `line` say where they were read, `index` counts rows from 0."""

    fields: dict[str, Any]
    file: str
    line: int
    index: int

    def get(self, *names: str) -> Any | None:
        """The value of the first of these fields that is there and not null."""
        return next((self.fields[name] for name in names if self.fields.get(name) is not None), None)

    def text(self, *names: str) -> str:
        """The first of these fields that is there, as text that is not blank; `7.0`, from a number column, is `7`.

        Raises: BadRow.
        """
        value = self.get(*names)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or isinstance(value, bool | list | dict) or not (text := str(value).strip()):
            wanted = " or ".join(f"'{name}'" for name in names)
            what = "no field" if value is None else "no text in field"
            raise self.bad(f"{what} {wanted}; its fields are {', '.join(map(str, self.fields)) or 'none'}")
        return text

    def rest(self, *names: str) -> dict[str, Any]:
        """All other fields."""
        return {name: value for name, value in self.fields.items() if name not in names}

    def bad(self, what: str) -> BadRow:
        """The error that says where this row is and `what` is wrong with it."""
        return BadRow(f"{self.file}, line {self.line}: {what}")


def read_rows(path: str | Path) -> list[Row]:
    """The rows of a `.jsonl`, `.json` (a list of objects), `.csv` or `.parquet` file.

    Raises: DataUnavailable when the file is missing or of another kind, BadRow naming the line that is no object.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataUnavailable(f"task.path: there is no file {str(path)!r}")
    readers = {".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    if file.suffix.lower() not in readers:
        raise DataUnavailable(f"task.path must end in {', '.join(readers)}; got {str(path)!r}")
    rows = []
    for index, (line, fields) in enumerate(readers[file.suffix.lower()](file)):
        if not isinstance(fields, dict):
            raise BadRow(f"{path}, line {line}: wanted an object with fields, got {type(fields).__name__}")
        rows.append(Row(fields, str(path), line, index))
    if not rows:
        raise DataUnavailable(f"task.path: {str(path)!r} holds no rows")
    return rows


def _jsonl(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, _parse(line.strip(), file, number)


def _json(file: Path) -> Iterator[tuple[int, Any]]:
    """Lines are counted in rows here: a row of an indented file has no line of its own."""
    rows = _parse(file.read_text(encoding="utf-8-sig"), file, 1)
    if not isinstance(rows, list):
        raise BadRow(f"{file}, line 1: wanted a list of objects, got {type(rows).__name__}")
    yield from enumerate(rows, 1)


def _parse(text: str, file: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRow(f"{file}, line {line + error.lineno - 1}: not JSON ({error.msg})") from None


def _csv(file: Path) -> Iterator[tuple[int, Any]]:
    csv.field_size_limit(1 << 30)
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, restkey="")
        for fields in reader:
            yield reader.line_num, {name: value for name, value in fields.items() if name and value != ""}


def _parquet(file: Path) -> Iterator[tuple[int, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")  # comes with `datasets`
    except ImportError:
        raise DataUnavailable(f"reading {str(file)!r} needs pyarrow: pip install pyarrow, or give JSONL") from None
    yield from enumerate(parquet.read_table(file).to_pylist(), 1)
