"""Finds a three-digit number by its digits: tries the first, then the second, and goes back where none is left."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from reason.tasks.puzzles.puzzle import Puzzle, State, Trial, trial_range
from reason.tasks.synthetic.exercise import NumberWriter

_LINE = re.compile(
    r"(?:a=\d: \d+-\d=\d+\. )?a=(\d), b=(\d): (\d+)-\d=(\d+), "
    r"\d\*\d=\d+, \d\*\d+=\d+, \d+\+\d+=\d+, (yes|no|no, back)\."
)

_LARGEST_SUM = 19  # every first digit leaves second digits to try


@dataclass(frozen=True, kw_only=True)
class Digits(Puzzle):
    """Digits a, b, c with a + b + c = 15 and a b + 3 c = 41. The state is the candidate, a, b, 15 - a, and whether to
    go back, that is, on to the next a.
    """

    family = "digits"
    difficulties = range(1, 6)
    symbol = "the number"

    digit_sum: int
    factor: int
    value: int

    @classmethod
    def generate(cls, rng: random.Random, difficulty: int) -> Digits:
        while True:
            a, b, c, k = rng.randint(1, 9), rng.randint(0, 9), rng.randint(0, 9), rng.randint(2, 9)
            question = (
                f"Find the smallest number with digits a, b, c so that a + b + c = {a + b + c} "
                f"and a b + {k} c = {a * b + k * c}."
            )
            if a + b + c > _LARGEST_SUM:
                continue
            puzzle = cls(difficulty=difficulty, question=question, digit_sum=a + b + c, factor=k, value=a * b + k * c)
            if len(puzzle.trials) in trial_range(difficulty):
                return puzzle

    @property
    def first_state(self) -> State:
        return 0, 0, 0, self.digit_sum, 1

    def try_next(self, state: State, write_number: NumberWriter) -> Trial:
        _, a, b, rest, is_back = state
        head = ""
        if is_back:
            a = a + 1
            rest = write_number(self.digit_sum - a)
            b = max(0, rest - 9)
            head = f"a={a}: {self.digit_sum}-{a}={rest}. "
        else:
            b = b + 1
        c = write_number(rest - b)
        first, second = write_number(a * b), write_number(self.factor * c)
        total = write_number(first + second)
        is_hit = total == self.value
        goes_back = not is_hit and (b >= min(9, rest) or (total > self.value) == (a >= self.factor))
        end = "yes" if is_hit else "no, back" if goes_back else "no"
        line = (
            f"{head}a={a}, b={b}: {rest}-{b}={c}, {a}*{b}={first}, {self.factor}*{c}={second}, "
            f"{first}+{second}={total}, {end}."
        )
        return Trial(line, (100 * a + 10 * b + c, a, b, rest, int(goes_back)), is_hit)

    def parse_trial(self, line: str) -> State | None:
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        a, b, rest, c = (int(match[i]) for i in range(1, 5))
        return 100 * a + 10 * b + c, a, b, rest, int(match[5] == "no, back")

    def plan_lines(self) -> list[str]:
        return [f"I need a + b + c = {self.digit_sum} and a b + {self.factor} c = {self.value}. I try a, then b."]

    def slow_lines(self) -> list[str]:
        lines = ["I begin with c = 0, 1 and so on."]
        for c in range(6):
            rest = self.digit_sum - c
            if rest < 1:
                break
            lines.append(f"c={c}: {self.factor}*{c}={self.factor * c}, a + b = {rest}.")
        return lines

    def write_notes(self, state: State) -> str:
        _, a, b, rest, is_back = state
        return f"up to a={a}, b={b} nothing works{', back' if is_back else ''}; {self.digit_sum}-{a}={rest}."

    def draw_untried(self, state: State, rng: random.Random) -> int:
        number = state[0] + rng.randint(5, 60)
        a, b = min(number // 100, 9), number // 10 % 10
        return 100 * a + 10 * b + min(max(self.digit_sum - a - b, 0), 9)
