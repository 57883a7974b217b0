"""Keeps one value for each of the branches that a controller has seen last."""

from __future__ import annotations

from typing import TypeVar

MAX_BRANCHES = 4096
"""Branches whose values are kept."""

T = TypeVar("T")


def store_latest(values: dict[int, T], request_id: int, value: T) -> None:
    """Stores the value of a branch as the latest one. *Mutates*."""
    # Popped and added again: the first in order is the least recently used.
    values.pop(request_id, None)
    values[request_id] = value


def forget_oldest(values: dict[int, T]) -> None:
    """Removes the least recently stored values beyond `MAX_BRANCHES`. *Mutates*."""
    while len(values) > MAX_BRANCHES:
        del values[next(iter(values))]
