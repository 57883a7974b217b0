"""Writes the numbers of a worked solution; a slipping pen writes one of them wrong and carries on from there."""

from __future__ import annotations

import random
from typing import Protocol


class Derailed(Exception):
    """A slip led somewhere the solution cannot continue from (a negative remainder, say)."""


class Pen(Protocol):
    """Every number of a solution goes through the pen, so that a wrong one has its natural consequences."""

    def __call__(self, value: int) -> int: ...


class SteadyPen:
    """Writes what it is told and counts how often."""

    def __init__(self) -> None:
        self.written = 0

    def __call__(self, value: int) -> int:
        self.written += 1
        return value


class SlippingPen(SteadyPen):
    """Writes the number with index `at` wrong, the way a hasty writer does; all others right."""

    def __init__(self, at: int, rng: random.Random) -> None:
        super().__init__()
        self._at = at
        self._rng = rng

    def __call__(self, value: int) -> int:
        value = super().__call__(value)
        return slip(value, self._rng) if self.written - 1 == self._at else value


def slip(value: int, rng: random.Random) -> int:
    """A wrong number near `value`: off by a little, one digit changed, two swapped, or one lost."""
    while True:
        digits = list(str(value))
        kind = rng.random()
        if kind < 0.35:
            wrong = value + rng.choice((-10, -2, -1, 1, 2, 10))
        elif kind < 0.8:
            digits[rng.randrange(len(digits))] = str(rng.randrange(10))
            wrong = int("".join(digits))
        elif kind < 0.9 and len(digits) > 1:
            i = rng.randrange(len(digits) - 1)
            digits[i], digits[i + 1] = digits[i + 1], digits[i]
            wrong = int("".join(digits))
        else:
            wrong = value + rng.choice((-100, 100, 20, -20, 5, -5))
        if wrong >= 0 and wrong != value:
            return wrong
