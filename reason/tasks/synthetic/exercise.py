"""Defines a synthetic problem: its question, its worked solution, and which steps of a solution are correct."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

DELIMITER = "\n\n"
CONCLUSION = "The answer"  # how the last step of every solution begins
LEADS = ("", "First, ", "Then ", "Next, ", "So ", "We get ")


class UnsolvableAfterError(Exception):
    """A wrong number makes the next step impossible, for instance because of a negative remainder."""


class NumberWriter(Protocol):
    """Returns the number that the solution writes for the exact `value`; later steps build on a wrong one."""

    def __call__(self, value: int) -> int: ...


class ExactWriter:
    """Writes each number as it is and counts them."""

    def __init__(self) -> None:
        self.num_written = 0

    def __call__(self, value: int) -> int:
        self.num_written += 1
        return value


@dataclass(frozen=True, kw_only=True)
class Exercise(ABC):
    """One problem of one family; subclasses add the numbers of the question as fields.

    The answer of a `verifier_only` family is part of the question (Countdown's answer is its target), so its solutions
    are graded by their steps, and voting on answers means nothing.
    """

    family: ClassVar[str]
    difficulties: ClassVar[range]
    verifier_only: ClassVar[bool] = False

    difficulty: int
    question: str

    @classmethod
    @abstractmethod
    def generate(cls, rng: random.Random, difficulty: int) -> Exercise:
        """Generates a random problem; `difficulty` is the number of values to compute."""

    @abstractmethod
    def solution_steps(self, write_number: NumberWriter, rng: random.Random) -> Iterator[str]:
        """Yields the steps of a solution without lead-in words; the last number written is the answer.

        `rng` chooses between orders that are equally correct.

        Raises: UnsolvableAfterError if a wrong number makes the next step impossible.
        """

    @cached_property
    def gold_steps(self) -> list[str]:
        """The correct steps, without lead-in words."""
        return list(self.solution_steps(ExactWriter(), random.Random(0)))

    @cached_property
    def answer(self) -> int:
        """The correct final answer."""
        return final_number(self.gold_steps[-1])

    def write_solution(self, write_number: NumberWriter, rng: random.Random) -> str:
        """Returns a whole solution; it ends in a boxed answer unless a wrong number made that impossible."""
        steps: list[str] = []
        try:
            for body in self.solution_steps(write_number, rng):
                steps.append(choose_lead(rng, first=not steps) + body)
            steps.append(f"{CONCLUSION} is \\boxed{{{final_number(steps[-1])}}}.")
        except UnsolvableAfterError:
            pass
        return DELIMITER.join(steps)

    def step_checker(self) -> StepChecker:
        """Returns a new checker for one solution; families whose steps have several orders override this."""
        return OrderedStepChecker(self.gold_steps)


class StepChecker(Protocol):
    """Checks one solution step by step, until the first wrong step."""

    def check_step(self, body: str) -> int | None:
        """Returns the number of correct characters before the error; None if the whole step is correct."""
        ...

    def is_done(self) -> bool:
        """Returns whether the next step may be the conclusion."""
        ...


class OrderedStepChecker:
    """Requires the gold steps, in their order."""

    def __init__(self, gold: list[str]) -> None:
        self._gold = gold
        self._index = 0

    def check_step(self, body: str) -> int | None:
        if self.is_done():
            return 0
        expected = self._gold[self._index]
        self._index += 1
        return None if body == expected else common_prefix(body, expected)

    def is_done(self) -> bool:
        return self._index == len(self._gold)


def common_prefix(a: str, b: str) -> int:
    """Returns the length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def final_number(body: str) -> int:
    """Returns the last whole number in a step.

    >>> final_number("x2: 7*0=0, 0+17=17.")
    17
    """
    digits = ""
    for char in reversed(body):
        if char.isdigit():
            digits = char + digits
        elif digits:
            break
    return int(digits)


def choose_lead(rng: random.Random, *, first: bool) -> str:
    """Chooses lead-in words, so that samples of one solution differ in their text."""
    return rng.choice(("", "First, ", "We get ")) if first else rng.choice(("", "Then ", "Next, ", "So "))


def strip_lead(step: str) -> str:
    """Removes the lead-in words of a step.

    >>> strip_lead("Next, f(3): 2")
    'f(3): 2'
    """
    return next((step[len(words) :] for words in LEADS if words and step.startswith(words)), step)
