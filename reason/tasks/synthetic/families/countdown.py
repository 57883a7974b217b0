"""Countdown: combine all the numbers to reach the target."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from reason.tasks.synthetic.exercise import Exercise, NumberWriter, UnsolvableAfterError

_STEP = re.compile(r"(\d+)([+*-])(\d+)=(\d+), leaving (\d+(?: \d+)*)\.")


@dataclass(frozen=True, kw_only=True)
class Countdown(Exercise):
    """Use 3, 7, 8 and 12 once each with +, - and * to reach 45. `difficulty` is how many numbers, less two."""

    family = "countdown"
    difficulties = range(1, 3)
    verifier_only = True

    numbers: tuple[int, ...]
    target: int
    moves: tuple[tuple[int, str, int], ...]

    @classmethod
    def generate(cls, rng: random.Random, difficulty: int) -> Countdown:
        while True:
            numbers = tuple(rng.randint(2, 15) for _ in range(difficulty + 2))
            moves: list[tuple[int, str, int]] = []
            left = list(numbers)
            while len(left) > 1:
                x, y = rng.sample(left, 2)
                sign = rng.choice("+-*")
                if sign == "-" and x < y:
                    x, y = y, x
                moves.append((x, sign, y))
                left.remove(x)
                left.remove(y)
                left.append(apply_operation(x, sign, y))
                if not 1 <= left[-1] <= 500:
                    break
            else:
                if 10 <= left[0] <= 999:
                    break
        names = ", ".join(map(str, numbers))
        question = f"Use the numbers {names} once each with +, - and * to reach {left[0]}."
        return cls(difficulty=difficulty, question=question, numbers=numbers, target=left[0], moves=tuple(moves))

    def solution_steps(self, write_number: NumberWriter, rng: random.Random) -> Iterator[str]:
        left = list(self.numbers)
        for x, sign, y in self.moves:
            if x not in left or y not in left or (x == y and left.count(x) < 2):
                raise UnsolvableAfterError
            left.remove(x)
            left.remove(y)
            value = write_number(apply_operation(x, sign, y))
            left.append(value)
            yield f"{x}{sign}{y}={value}, leaving {' '.join(map(str, left))}."

    def step_checker(self) -> CountdownChecker:
        """Returns a checker that accepts every way to the target."""
        return CountdownChecker(self.numbers, self.target)


class CountdownChecker:
    """Checks the moves of a Countdown solution: a move is wrong if it breaks a rule or makes the target unreachable."""

    def __init__(self, numbers: tuple[int, ...], target: int) -> None:
        self._left = sorted(numbers)
        self._target = target

    def check_step(self, body: str) -> int | None:
        move = _STEP.fullmatch(body)
        if move is None:
            return 0
        x, y, value = int(move[1]), int(move[3]), int(move[4])
        before_leaving = move.end(4)
        left = list(self._left)
        for number in (x, y):
            if number not in left:
                return 0
            left.remove(number)
        if apply_operation(x, move[2], y) != value:
            return move.start(4)
        left.append(value)
        if sorted(map(int, move[5].split())) != sorted(left):
            return before_leaving
        self._left = sorted(left)
        return None if can_reach_target(tuple(self._left), self._target) else len(body) - 1

    def is_done(self) -> bool:
        return self._left == [self._target]


def apply_operation(x: int, sign: str, y: int) -> int:
    """Returns x + y, x - y or x * y."""
    return x + y if sign == "+" else x - y if sign == "-" else x * y


@cache
def can_reach_target(numbers: tuple[int, ...], target: int) -> bool:
    """Returns whether some sequence of moves turns these numbers into the target, using each once."""
    if len(numbers) == 1:
        return numbers[0] == target
    for i, x in enumerate(numbers):
        for j, y in enumerate(numbers):
            if i != j:
                rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
                for sign in "+*-" if i < j else "-":
                    value = apply_operation(x, sign, y)
                    if value >= 0 and can_reach_target(tuple(sorted([*rest, value])), target):
                        return True
    return False
