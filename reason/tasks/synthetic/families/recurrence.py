"""Iterates a linear recurrence modulo a small number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from reason.tasks.synthetic.exercise import Exercise, NumberWriter, UnsolvableAfterError


@dataclass(frozen=True, kw_only=True)
class Recurrence(Exercise):
    """x0 = 12, x(k+1) = (7 xk + 17) mod 23. `difficulty` is the number of terms to work out."""

    family = "recurrence"
    difficulties = range(1, 7)

    start: int
    factor: int
    shift: int
    modulus: int

    @classmethod
    def generate(cls, rng: random.Random, difficulty: int) -> Recurrence:
        m = rng.randint(7, 29)
        a, c, x = rng.randint(2, 9), rng.randint(1, 20), rng.randint(1, m - 1)
        question = f"x0 = {x}. Each next term is {a} times the one before plus {c}, modulo {m}. Find x{difficulty}."
        return cls(difficulty=difficulty, question=question, start=x, factor=a, shift=c, modulus=m)

    def solution_steps(self, write_number: NumberWriter, rng: random.Random) -> Iterator[str]:
        x = self.start
        for i in range(1, self.difficulty + 1):
            y = write_number(x)
            product = write_number(self.factor * y)
            total = write_number(product + self.shift)
            multiple = write_number(total - total % self.modulus)
            if multiple > total:
                raise UnsolvableAfterError
            x = write_number(total - multiple)
            yield f"x{i}: {self.factor}*{y}={product}, {product}+{self.shift}={total}, {total}-{multiple}={x}."
