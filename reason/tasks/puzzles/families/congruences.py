"""Solves a x = b (mod m) by trying x = 1, 2, 3 and so on."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

from reason.tasks.puzzles.puzzle import (
    MODULAR_SUM,
    Puzzle,
    State,
    Trial,
    parse_modular_trial,
    trial_range,
    write_modular_sum,
)
from reason.tasks.synthetic.exercise import NumberWriter

_LINE = re.compile(rf"x=(\d+): {MODULAR_SUM}")
_MODULI = range(7, 38)


@dataclass(frozen=True, kw_only=True)
class Congruence(Puzzle):
    """17 x = 5 (mod 23). The state is x and what a x leaves."""

    family = "congruences"
    difficulties = range(1, 7)
    symbol = "x"

    factor: int
    residue: int
    modulus: int

    @classmethod
    def generate(cls, rng: random.Random, difficulty: int) -> Congruence:
        x = rng.choice(trial_range(difficulty))
        while True:
            m = rng.randrange(max(_MODULI.start, x + 1), _MODULI.stop)
            a = rng.randint(2, m - 1)
            if math.gcd(a, m) == 1:
                break
        b = a * x % m
        question = f"Find the smallest non-negative integer x with {a} x = {b} (mod {m})."
        return cls(difficulty=difficulty, question=question, factor=a, residue=b, modulus=m)

    @property
    def first_state(self) -> State:
        return 0, 0

    def try_next(self, state: State, write_number: NumberWriter) -> Trial:
        x, before = state
        work, left, is_hit = write_modular_sum(before, self.factor, self.modulus, self.residue, write_number)
        return Trial(f"x={x + 1}: {work}", (x + 1, left), is_hit)

    def parse_trial(self, line: str) -> State | None:
        return parse_modular_trial(line, _LINE)

    def plan_lines(self) -> list[str]:
        equation = f"{self.factor} x = {self.residue} (mod {self.modulus})"
        return [f"I need {equation}. I add {self.factor} each time, until 0 is left."]

    def slow_lines(self) -> list[str]:
        lines = [
            f"I look for a multiple of {self.factor} among {self.residue}, {self.residue}+{self.modulus} and so on."
        ]
        value = self.residue
        for _ in range(8):
            total = value + self.modulus
            over = total % self.factor
            if not over:
                break
            lines.append(f"{value}+{self.modulus}={total}, {total}-{total - over}={over}, no.")
            value = total
        return lines
