"""Counts the ways across a row of stones by a recurrence with two terms, modulo 1000.

The family is named `stones` in data and problem ids.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from reason.tasks.synthetic.exercise import Exercise, NumberWriter


@dataclass(frozen=True, kw_only=True)
class TwoTermRecurrence(Exercise):
    """w(n) = 3 w(n-1) + 2 w(n-2) mod 1000. `difficulty` is the number of stones after the first two."""

    family = "stones"
    difficulties = range(1, 6)

    first: int
    second: int
    from_last: int
    from_before: int

    @classmethod
    def generate(cls, rng: random.Random, difficulty: int) -> TwoTermRecurrence:
        r, s = rng.randint(1, 20), rng.randint(1, 20)
        p, q = rng.randint(2, 5), rng.randint(2, 5)
        question = (
            f"Stone 1 can be reached in {r} ways and stone 2 in {s}. Every later stone is reached from the one before "
            f"in {p} ways and from two before in {q}. In how many ways can stone {difficulty + 2} be reached, "
            "modulo 1000?"
        )
        return cls(difficulty=difficulty, question=question, first=r, second=s, from_last=p, from_before=q)

    def solution_steps(self, write_number: NumberWriter, rng: random.Random) -> Iterator[str]:
        before, last = self.first, self.second
        for n in range(3, self.difficulty + 3):
            u, v = write_number(last), write_number(before)
            a, b = write_number(self.from_last * u), write_number(self.from_before * v)
            total = write_number(a + b)
            written_total = write_number(total % 1000) if total >= 1000 else total
            keeps = f", keep {written_total}" if total >= 1000 else ""
            yield f"w({n}): {self.from_last}*{u}={a}, {self.from_before}*{v}={b}, {a}+{b}={total}{keeps}."
            before, last = u, written_total
