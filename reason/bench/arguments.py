"""What the scripts that measure read from a command line."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError


def positive(text: str) -> int:
    """A number of at least 1. Raises: ArgumentTypeError."""
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f"wants a number >= 1, got {text}")
    return number


def counts(text: str) -> tuple[int, ...]:
    """`1,4,16` as numbers of at least 1. Raises: ArgumentTypeError."""
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 1:
        raise ArgumentTypeError(f"wants numbers >= 1, got {text}")
    return numbers


def names(text: str) -> tuple[str, ...]:
    """`stand,suffix` as names."""
    return tuple(part.strip() for part in text.split(","))


def bind_threads(count: int | None) -> None:
    """torch uses at most `count` threads; `None` leaves it its choice. To be called before torch is loaded."""
    assert "torch" not in sys.modules, "too late: torch has read how many threads it may use"
    if count is not None:
        os.environ["OMP_NUM_THREADS"] = str(count)
