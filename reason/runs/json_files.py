"""Writes JSON and JSON-lines files that survive a killed process: every line and every file is complete or absent."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reason.runs.output_folder import OutputFolder

REFUSED = "refused.json"
"""File that a job of a sweep with wrong settings leaves in its folder: its `overrides` and the `error`."""


def read_whole_lines(path: Path) -> list[bytes]:
    """Reads the lines of a file, without a half-written last one; a missing file has none. Raises: OutputError."""
    data = OutputFolder(path.parent).read(path.name) or b""
    return data[: data.rfind(b"\n") + 1].splitlines()


def append_json_lines(path: Path, rows: Iterable[Mapping[str, object]], *, create: bool = True) -> None:
    """Appends rows as JSON lines, on disk on return, all or none; a half-written last line is cut off first.

    *Mutates* the file. Raises: OutputError; also where the file is missing, unless `create`.
    """
    OutputFolder(path.parent).append(path.name, b"".join(map(format_json_line, rows)), create=create)


def format_json_line(row: Mapping[str, object]) -> bytes:
    """Formats one row as a line; half a surrogate pair is written as an escape."""
    return json.dumps(row, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def parse_json(data: bytes) -> Any:
    """Parses JSON. Raises: ValueError saying in one line why it is none; brackets nested too deeply are none."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file at once: a reader sees the old content or the new one. *Mutates* the folder, which is made.

    Raises: OutputError.
    """
    folder = OutputFolder(path.parent)
    folder.make()
    folder.replace(path.name, data)


def write_json(path: Path, value: object) -> None:
    """Writes `value` as an indented JSON file, atomically; the folder is made. Raises: OutputError."""
    write_atomically(path, format_json(value))


def format_json(value: object) -> bytes:
    """Formats an indented JSON file; half a surrogate pair is written as an escape."""
    return json.dumps(value, indent=2, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def safe_file_name(problem_id: str) -> str:
    """Returns a file name for a problem; different ids have different names, also where a disk ignores case.

    >>> safe_file_name("aime24-01"), safe_file_name("test/algebra/1.json")
    ('aime24-01', 'test_algebra_1.json-87223aa0')
    """
    safe = re.sub(r"[^\w.-]", "_", problem_id, flags=re.ASCII)[:100]
    if safe and safe == problem_id.lower() and not safe.startswith("."):
        return safe
    digest = hashlib.blake2b(problem_id.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{safe.lstrip('.')}-{digest}"
