"""Applies a function of the digit sum repeatedly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from reason.tasks.synthetic.exercise import Exercise, NumberWriter


@dataclass(frozen=True, kw_only=True)
class DigitSums(Exercise):
    """f(n) = 9 S(n) + 37, applied repeatedly. `difficulty` is how often."""

    family = "digit_sums"
    difficulties = range(1, 7)

    start: int
    factor: int
    shift: int

    @classmethod
    def generate(cls, rng: random.Random, difficulty: int) -> DigitSums:
        k, c, x = rng.randint(2, 15), rng.randint(1, 60), rng.randint(100, 999)
        times = "once" if difficulty == 1 else f"{difficulty} times"
        question = f"Let f(n) be {k} times the digit sum of n, plus {c}. Start with {x} and apply f {times}."
        return cls(difficulty=difficulty, question=question, start=x, factor=k, shift=c)

    def solution_steps(self, write_number: NumberWriter, rng: random.Random) -> Iterator[str]:
        x = self.start
        for _ in range(self.difficulty):
            x = write_number(x)
            digits = str(x)
            total = write_number(sum(map(int, digits)))
            product = write_number(self.factor * total)
            y = write_number(product + self.shift)
            sums = "+".join(digits) + f"={total}, " if len(digits) > 1 else ""
            yield f"f({x}): {sums}{self.factor}*{total}={product}, {product}+{self.shift}={y}."
            x = y
