"""Defines a puzzle that is solved by trying candidates in order, one line each."""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from reason.tasks.synthetic.exercise import ExactWriter, Exercise, NumberWriter

TRIALS_PER_DIFFICULTY = 5

State = tuple[int, ...]
"""The numbers that the next trial needs, as written by the last one; the first of them identifies the candidate."""


class Trial(NamedTuple):
    """A line that tries one candidate, the state after it as written, and whether the line says that it works."""

    line: str
    state: State
    is_hit: bool


@dataclass(frozen=True, kw_only=True)
class Puzzle(Exercise):
    """Candidates are tried in order; the first that works is the answer. Difficulty d: up to 5 d candidates.

    Trials may begin at any state, so that a search can go on from notes.
    """

    symbol: ClassVar[str]

    @property
    @abstractmethod
    def first_state(self) -> State:
        """The state before the first trial."""

    @abstractmethod
    def try_next(self, state: State, write_number: NumberWriter) -> Trial:
        """Tries the candidate after `state`."""

    @abstractmethod
    def parse_trial(self, line: str) -> State | None:
        """Returns the state that a trial's line writes, None for another text."""

    def label(self, line: str) -> str:
        """Returns what identifies the trial of a line, without what the line computes."""
        return line.partition(":")[0]

    @abstractmethod
    def plan_lines(self) -> list[str]:
        """Returns the lines that begin the search, all of them right."""

    @abstractmethod
    def slow_lines(self) -> list[str]:
        """Returns the first lines of a slower way, all of them right; the first says what it is."""

    def write_notes(self, state: State) -> str:
        """Returns the notes after a trial without success: how the line of the next one begins, before its first sum.

        A small model continues its lines well; it hardly finds their numbers to tell them in other words.
        """
        line = self.try_next(state, ExactWriter()).line
        return f"nothing works. I go on with\n{line[: line.index('=', line.index(': '))]}"

    def candidate(self, state: State) -> int:
        """Returns the candidate that the last trial before `state` tried, as an answer."""
        return state[0]

    def state_statement(self, answer: int) -> str:
        """Returns the statement of an answer inside a thought."""
        return f"So {self.symbol} = {answer}."

    def write_success_notes(self, answer: int) -> str:
        """Returns the notes after a trial that succeeded."""
        return f"{self.symbol} = {answer} works."

    @cached_property
    def trials(self) -> list[Trial]:
        """The exact trials from the first to the one that succeeds."""
        done: list[Trial] = []
        while not done or not done[-1].is_hit:
            done.append(self.try_next(done[-1].state if done else self.first_state, ExactWriter()))
        return done

    def solution_steps(self, write_number: NumberWriter, rng: random.Random) -> Iterator[str]:
        for trial in self.trials:
            yield trial.line
        yield self.state_statement(self.candidate(self.trials[-1].state))


def trial_range(difficulty: int) -> range:
    """Returns the numbers of trials of a difficulty.

    >>> trial_range(2)
    range(6, 11)
    """
    return range(TRIALS_PER_DIFFICULTY * (difficulty - 1) + 1, TRIALS_PER_DIFFICULTY * difficulty + 1)


def write_modular_sum(
    before: int, addend: int, modulus: int, residue: int, write_number: NumberWriter
) -> tuple[str, int, bool]:
    """Returns the work of adding below a modulus, what it leaves, and whether that is the residue.

    Every number that the work needs stands in it, and a comparison is a difference: a small model learns sums, but
    hardly whether two numbers far apart are the same.

    >>> write_modular_sum(12, 9, 13, 5, ExactWriter())
    ('12+9=21, 21-13=8; 8-5=3.', 8, False)
    >>> write_modular_sum(3, 2, 13, 5, ExactWriter())
    ('3+2=5, 5<13; 5-5=0.', 5, True)
    """
    total = left = write_number(before + addend)
    if total < modulus:
        work = f"{total}<{modulus}"
    else:
        left = write_number(total - modulus)
        work = f"{total}-{modulus}={left}"
    difference = write_number(left - residue)
    return f"{before}+{addend}={total}, {work}; {left}-{residue}={difference}.", left, difference == 0


MODULAR_SUM = r"\d+\+\d+=\d+, (?:\d+<\d+|\d+-\d+=\d+); (?P<left>\d+)-\d+=-?\d+\."
"""Pattern of what `write_modular_sum` writes."""


def parse_modular_trial(line: str, pattern: re.Pattern[str]) -> State | None:
    """Returns the candidate, the first group of `pattern`, and what it leaves; None where the line is no such trial."""
    match = pattern.fullmatch(line)
    return (int(match[1]), int(match["left"])) if match else None
