"""Writes JSON and JSON-lines files that survive a killed process: every line and every file is complete or absent."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

REFUSED = "refused.json"
"""File that a job of a sweep with wrong settings leaves in its folder: its `overrides` and the `error`."""


def read_whole_lines(path: Path) -> list[bytes]:
    """Reads the lines of a file; a missing file has none. *Mutates* the file: a half-written last line is cut off."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))  # the next append must not continue the broken line
    return whole.splitlines()


def append_json_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Appends rows as JSON lines, on disk on return. *Mutates* the file, which is created if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.writelines(map(format_json_line, rows))
        file.flush()
        os.fsync(file.fileno())


def format_json_line(row: Mapping[str, object]) -> bytes:
    """Formats one row as a line; half a surrogate pair is written as an escape."""
    return json.dumps(row, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file at once: a reader sees the old content or the new one. *Mutates* the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # before the rename, or a crash could leave an empty file under the final name
    temporary.replace(path)


def write_json(path: Path, value: object) -> None:
    """Writes `value` as an indented JSON file, atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    write_atomically(path, text.encode(errors="backslashreplace") + b"\n")


def safe_file_name(problem_id: str) -> str:
    """Returns a file name for a problem; different ids have different names.

    >>> safe_file_name("aime24-01"), safe_file_name("test/algebra/1.json")
    ('aime24-01', 'test_algebra_1.json-87223aa0')
    """
    safe = re.sub(r"[^\w.-]", "_", problem_id, flags=re.ASCII)[:100]
    if safe and safe == problem_id and not safe.startswith("."):
        return safe
    return f"{safe.lstrip('.')}-{hashlib.blake2b(problem_id.encode(), digest_size=4).hexdigest()}"
