"""Differences of two pieces of plain data: rows of two runs, or two trees."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reason.runs.result import UNSTABLE_USAGE_FIELDS

TOLERANCE = 1e-3
"""Of scores and votes: a batch of another shape rounds otherwise."""
Row = dict[str, Any]


def read_rows(file: Path) -> list[Row]:
    """Returns the rows of a results file. Raises: OSError, or ValueError where a line is not JSON."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def keep_stable(row: Row) -> Row:
    """Returns the row without fields that depend on time, on the cache or on the draft length."""
    stable = {name: value for name, value in row.items() if name not in ("accepted_length", "versions")}
    usage = {name: value for name, value in row["usage"].items() if name not in UNSTABLE_USAGE_FIELDS}
    return stable | {"usage": usage}


def compare_rows(expected: list[Row], actual: list[Row]) -> list[str]:
    """Returns a sentence for every row that is lost, doubled, unknown, or different.

    >>> row = {"id": "a", "usage": {}, "answer": "1"}
    >>> compare_rows([row], [row | {"answer": "2"}, row])
    ['row a is there 2 times', "row a differs: answer is '2', not '1'"]
    >>> compare_rows([row], [row | {"id": "b"}])
    ['row a is lost', 'row b is of no problem']
    """
    by_id = {row["id"]: row for row in reversed(actual)}
    counts = [row["id"] for row in actual]
    wrong = [f"row {name} is there {counts.count(name)} times" for name in by_id if counts.count(name) > 1]
    wrong += [f"row {row['id']} is lost" for row in expected if row["id"] not in by_id]
    wrong += [f"row {name} is of no problem" for name in by_id.keys() - {row["id"] for row in expected}]
    for row in expected:
        if row["id"] in by_id:
            first = next(find_differences(keep_stable(row), keep_stable(by_id[row["id"]])), None)
            wrong += [] if first is None else [f"row {row['id']} differs: {first}"]
    return wrong


def find_differences(expected: object, actual: object, name: str = "") -> Iterator[str]:
    """Yields a text for every place where plain data differs; numbers may differ by `TOLERANCE`.

    >>> list(find_differences({"a": [1.0, 2]}, {"a": [1.0001, 3]}))
    ['a.1 is 3, not 2']
    """
    if isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys():
        for key, value in expected.items():
            yield from find_differences(value, actual[key], f"{name}.{key}" if name else str(key))
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for i, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from find_differences(one, other, f"{name}.{i}")
    elif isinstance(expected, float) and isinstance(actual, float):
        if not math.isclose(expected, actual, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{name} is {actual!r}, not {expected!r}"
    elif expected != actual:
        yield f"{name} is {shorten(actual)}, not {shorten(expected)}"


def shorten(value: object) -> str:
    """Returns the representation of a value, at most 120 characters of it."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
