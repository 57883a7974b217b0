"""Writes the numbers of a worked solution with one injected error that the later steps build on."""

from __future__ import annotations

import random

from reason.tasks.synthetic.exercise import ExactWriter


class ErrorWriter(ExactWriter):
    """Writes the number with index `at` wrong and all others as they are."""

    def __init__(self, at: int, rng: random.Random) -> None:
        super().__init__()
        self._at = at
        self._rng = rng

    def __call__(self, value: int) -> int:
        value = super().__call__(value)
        return wrong_number(value, self._rng) if self.num_written - 1 == self._at else value


def wrong_number(value: int, rng: random.Random) -> int:
    """Returns a wrong number near `value`: a small or large offset, one digit changed, or two digits swapped."""
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
