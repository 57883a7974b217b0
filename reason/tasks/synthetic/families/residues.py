"""Finds a number with two given remainders by trying the candidates in order."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from reason.tasks.synthetic.exercise import Exercise, NumberWriter, UnsolvableAfterError


@dataclass(frozen=True, kw_only=True)
class Residues(Exercise):
    """Smallest n with n = r mod m and n = s mod k. `difficulty` is the number of candidates that must be tried."""

    family = "residues"
    difficulties = range(1, 7)

    start: int
    stride: int
    modulus: int
    target_residue: int

    @classmethod
    def generate(cls, rng: random.Random, difficulty: int) -> Residues:
        while True:
            m, k = rng.randint(11, 40), rng.randint(4, 10)
            r = rng.randint(1, m - 1)
            n = r + m * (difficulty - 1)
            if math.gcd(m, k) == 1 and difficulty <= k and m > k:
                break
        question = f"Find the least positive n with n mod {m} = {r} and n mod {k} = {n % k}."
        return cls(difficulty=difficulty, question=question, start=r, stride=m, modulus=k, target_residue=n % k)

    def solution_steps(self, write_number: NumberWriter, rng: random.Random) -> Iterator[str]:
        n = write_number(self.start)
        for tried in range(2 * self.difficulty + 3):
            if tried:
                before, n = n, write_number(n + self.stride)
                sum_work = f"{before}+{self.stride}={n}: "
            else:
                sum_work = f"{n}: "
            multiple = write_number(n - n % self.modulus)
            if multiple > n:
                raise UnsolvableAfterError
            left = write_number(n - multiple)
            verdict = f"take {n}" if left == self.target_residue else "no"
            yield f"{sum_work}{n}-{multiple}={left}, {verdict}."
            if left == self.target_residue:
                return
        raise UnsolvableAfterError
