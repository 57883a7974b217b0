"""Reads rows of a data set from a file: JSONL, JSON, CSV or Parquet; each row knows its file and line."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from decoding.validation import InvalidText, require_text

_BYTES = "surrogateescape"
"""Bytes that are not UTF-8 become characters that `DatasetRow` refuses, with the line and the field they are in."""


class DataUnavailable(ValueError):
    """The data set cannot be loaded; the message names in one sentence the file to give instead."""


class InvalidRow(ValueError):
    """A row lacks what the task needs; the message names the file, the line, the field and its value."""


@dataclass(frozen=True)
class DatasetRow:
    """The fields of one row, read at `line` of `file`; `index` counts rows from 0.

    Raises: InvalidRow for a field whose text is not Unicode.
    """

    fields: dict[str, object]
    file: str
    line: int
    index: int

    def __post_init__(self) -> None:
        try:
            require_text("", self.fields)
        except InvalidText as error:
            raise self.invalid_row(str(error)) from None

    def first_value(self, *names: str) -> object | None:
        """Returns the value of the first of these fields that exists and is not null."""
        return next((self.fields[name] for name in names if self.fields.get(name) is not None), None)

    def require_text(self, *names: str) -> str:
        """Returns the first of these fields that exists, as non-blank text; `7.0`, from a number column, is `7`.

        Raises: InvalidRow.
        """
        value = self.first_value(*names)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or isinstance(value, bool | list | dict) or not (text := str(value).strip()):
            names_text = " or ".join(f"'{name}'" for name in names)
            what = "no field" if value is None else "no text in field"
            raise self.invalid_row(f"{what} {names_text}; its fields are {', '.join(map(str, self.fields)) or 'none'}")
        return text

    def other_fields(self, *names: str) -> dict[str, object]:
        """Returns all other fields."""
        return {name: value for name, value in self.fields.items() if name not in names}

    def invalid_row(self, what: str) -> InvalidRow:
        """Returns the error that names the place of this row and `what` is wrong with it."""
        return InvalidRow(f"{self.file}, line {self.line}: {what}")


def read_rows(path: str | Path) -> list[DatasetRow]:
    """Reads the rows of a `.jsonl`, `.json` (a list of objects), `.csv` or `.parquet` file.

    Raises: DataUnavailable when the file is missing or of another kind, InvalidRow naming the line that is no object.
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
            raise InvalidRow(f"{path}, line {line}: expected an object with fields, got {type(fields).__name__}")
        rows.append(DatasetRow(fields, str(path), line, index))
    if not rows:
        raise DataUnavailable(f"task.path: {str(path)!r} holds no rows")
    return rows


def _jsonl(file: Path) -> Iterator[tuple[int, object]]:
    with file.open(encoding="utf-8-sig", errors=_BYTES) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, _parse(line.strip(), file, number)


def _json(file: Path) -> Iterator[tuple[int, object]]:
    """Counts lines in rows: a row of an indented file has several lines."""
    rows = _parse(file.read_text(encoding="utf-8-sig", errors=_BYTES), file, 1)
    if not isinstance(rows, list):
        raise InvalidRow(f"{file}, line 1: expected a list of objects, got {type(rows).__name__}")
    yield from enumerate(rows, 1)


def _parse(text: str, file: Path, line: int) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRow(f"{file}, line {line + error.lineno - 1}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # an int of thousands of digits, lists in lists in lists
        raise InvalidRow(f"{file}, line {line}: not JSON that can be read ({error})") from None


def _csv(file: Path) -> Iterator[tuple[int, object]]:
    csv.field_size_limit(1 << 30)
    with file.open(encoding="utf-8-sig", errors=_BYTES, newline="") as lines:
        reader = csv.DictReader(lines, restkey="")
        try:
            for fields in reader:
                if isinstance(surplus := fields.get(""), list) and any(surplus):
                    where = f"{file}, line {reader.line_num}"
                    raise InvalidRow(f"{where}: more fields than the header names; put texts with commas in quotes")
                yield reader.line_num, {name: value for name, value in fields.items() if name and value != ""}
        except csv.Error as error:
            raise InvalidRow(f"{file}, line {reader.line_num}: not CSV ({error})") from None


def _parquet(file: Path) -> Iterator[tuple[int, object]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")  # comes with `datasets`
    except ImportError:
        raise DataUnavailable(f"reading {str(file)!r} needs pyarrow: pip install pyarrow, or give JSONL") from None
    try:
        rows = parquet.read_table(file).to_pylist()
    except (ValueError, OSError) as error:  # pyarrow's errors are of these types
        raise DataUnavailable(f"{str(file)!r} is no Parquet file that can be read: {error}") from None
    yield from enumerate(rows, 1)
