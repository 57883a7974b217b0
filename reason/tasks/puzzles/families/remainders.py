"""Finds a number with two given remainders by stepping through those that have one of them."""

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

_LINE = re.compile(rf"\d+\+\d+=(\d+): {MODULAR_SUM}")
_LARGEST = 149
_LARGEST_DIVISOR = 20


@dataclass(frozen=True, kw_only=True)
class Remainders(Puzzle):
    """n leaves 3 when divided by 7 and 5 when divided by 11. The state is n and what it leaves by the smaller one."""

    family = "remainders"
    difficulties = range(1, 3)
    symbol = "n"

    small: int
    large: int
    small_remainder: int
    large_remainder: int

    @classmethod
    def generate(cls, rng: random.Random, difficulty: int) -> Remainders:
        while True:
            trials = rng.choice(trial_range(difficulty))
            small = rng.randint(max(5, trials + 1), _LARGEST_DIVISOR)
            large = rng.randint(small + 1, 2 * small - 1)
            start = rng.randint(1, large - 1)
            n = start + large * trials
            if math.gcd(small, large) == 1 and n <= _LARGEST:
                break
        question = (
            f"Find the smallest positive integer n that leaves {n % small} when divided by {small} "
            f"and {start} when divided by {large}."
        )
        return cls(
            difficulty=difficulty,
            question=question,
            small=small,
            large=large,
            small_remainder=n % small,
            large_remainder=start,
        )

    @property
    def first_state(self) -> State:
        return self.large_remainder, self.large_remainder % self.small

    @property
    def _stride(self) -> int:
        return self.large - self.small

    def try_next(self, state: State, write_number: NumberWriter) -> Trial:
        n, before = state
        following = write_number(n + self.large)
        work, left, is_hit = write_modular_sum(before, self._stride, self.small, self.small_remainder, write_number)
        return Trial(f"{n}+{self.large}={following}: {work}", (following, left), is_hit)

    def parse_trial(self, line: str) -> State | None:
        return parse_modular_trial(line, _LINE)

    def label(self, line: str) -> str:
        return line.partition("=")[0]

    def plan_lines(self) -> list[str]:
        first = str(self.large_remainder)
        if self.large_remainder >= self.small:
            first += f"-{self.small}={self.large_remainder - self.small}"
        return [
            f"I need {self.small_remainder} by {self.small}. I begin with {self.large_remainder} and add {self.large} "
            "each time, until 0 is left.",
            f"By {self.small}: {first}, {self.large}-{self.small}={self._stride}.",
        ]

    def slow_lines(self) -> list[str]:
        lines = [f"I begin with {self.small_remainder} and add {self.small} each time."]
        value = self.small_remainder
        for _ in range(8):
            total = value + self.small
            left = total % self.large
            if left == self.large_remainder:
                break
            lines.append(f"{value}+{self.small}={total}, by {self.large} it leaves {left}, no.")
            value = total
        return lines
