"""Result files that survive being killed: one JSON line per problem, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
REFUSED = "refused.json"
"""What a job of a sweep leaves whose settings are wrong: its `overrides` and the `error`."""


class ResultFile:
    """`results.jsonl`: rows are appended as problems finish and each is on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Row]:
        """The last row of every problem. A half-written last line is cut off the file. *Mutates* the file then.

        Raises: ValueError naming the line if anything but the last line is broken.
        """
        rows: dict[str, Row] = {}
        for number, line in enumerate(whole_lines(self.path), 1):
            try:
                row = json.loads(line)
                rows[row["id"]] = row
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path}, line {number}: not a result row ({error})") from None
        return rows

    def append(self, row: Row) -> None:
        """Add one row; it is on disk on return. *Mutates* the file, which is made if need be."""
        append_lines(self.path, [row])

    def arrange(self, ids: Iterable[str]) -> list[Row]:
        """Bring the file into the order of `ids`, one row each, and return the rows. *Mutates* the file, atomically."""
        rows = self.read()
        arranged = [rows[i] for i in ids if i in rows]
        write_whole(self.path, b"".join(map(_line, arranged)))
        return arranged


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file, none if there is no file. A half-written last one is cut off it. *Mutates* the file then."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return whole.splitlines()


def append_lines(path: Path, rows: Iterable[Row]) -> None:
    """Add rows as JSON lines; they are on disk on return. *Mutates* the file, which is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.writelines(map(_line, rows))
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file at once: a reader sees the old one or the new one. *Mutates* the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def write_json(path: Path, value: Any) -> None:
    """`value` as an indented JSON file, written whole."""
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False).encode(errors="backslashreplace") + b"\n")


def file_name(identity: str) -> str:
    """A name for a file about the problem `identity`; different ids have different names.

    >>> file_name("aime24-01"), file_name("test/algebra/1.json")
    ('aime24-01', 'test_algebra_1.json-87223aa0')
    """
    safe = re.sub(r"[^\w.-]", "_", identity, flags=re.ASCII)[:100]
    if safe and safe == identity and not safe.startswith("."):
        return safe
    return f"{safe.lstrip('.')}-{hashlib.blake2b(identity.encode(), digest_size=4).hexdigest()}"


def _line(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
