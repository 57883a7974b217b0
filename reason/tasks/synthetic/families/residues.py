"""Find a number with two given remainders by trying the candidates in order."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from reason.tasks.synthetic.error_injection import Derailed, Pen
from reason.tasks.synthetic.exercise import Exercise


@dataclass(frozen=True, kw_only=True)
class Residues(Exercise):
    """Smallest n with n = r mod m and n = s mod k. `difficulty` is the number of candidates that must be tried."""

    family = "residues"
    difficulties = range(1, 7)

    start: int
    stride: int
    modulus: int
    wanted: int

    @classmethod
    def pose(cls, rng: random.Random, difficulty: int) -> Residues:
        while True:
            m, k = rng.randint(11, 40), rng.randint(4, 10)
            r = rng.randint(1, m - 1)
            n = r + m * (difficulty - 1)
            if math.gcd(m, k) == 1 and difficulty <= k and m > k:
                break
        question = f"Find the least positive n with n mod {m} = {r} and n mod {k} = {n % k}."
        return cls(difficulty=difficulty, question=question, start=r, stride=m, modulus=k, wanted=n % k)

    def bodies(self, pen: Pen, rng: random.Random) -> Iterator[str]:
        n = pen(self.start)
        for tried in range(2 * self.difficulty + 3):
            if tried:
                before, n = n, pen(n + self.stride)
                sum_work = f"{before}+{self.stride}={n}: "
            else:
                sum_work = f"{n}: "
            multiple = pen(n - n % self.modulus)
            if multiple > n:
                raise Derailed
            left = pen(n - multiple)
            verdict = f"take {n}" if left == self.wanted else "no"
            yield f"{sum_work}{n}-{multiple}={left}, {verdict}."
            if left == self.wanted:
                return
        raise Derailed
