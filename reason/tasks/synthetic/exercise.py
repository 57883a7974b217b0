"""A synthetic problem: how it is posed, how it is solved, and which steps of a solution are right."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

from reason.tasks.synthetic.error_injection import Derailed, Pen, SteadyPen

DELIMITER = "\n\n"
CONCLUSION = "The answer"  # how the last step of every solution begins
LEADS = ("", "First, ", "Then ", "Next, ", "So ", "We get ")


@dataclass(frozen=True, kw_only=True)
class Exercise(ABC):
    """One problem of one family. Subclasses add what the question is about as fields.

    `verifier_only` families have an answer that gives nothing away (Countdown's answer is its target), so
    success is judged by the steps and voting on answers means nothing.
    """

    family: ClassVar[str]
    difficulties: ClassVar[range]
    verifier_only: ClassVar[bool] = False

    difficulty: int
    question: str

    @classmethod
    @abstractmethod
    def pose(cls, rng: random.Random, difficulty: int) -> Exercise:
        """A random problem of this difficulty: the number of things that must be worked out."""

    @abstractmethod
    def bodies(self, pen: Pen, rng: random.Random) -> Iterator[str]:
        """The steps of a solution without lead-in words; the last number written is the answer.

        `rng` may choose between equally right orders. Raises `Derailed` when a slip makes going on senseless.
        """

    @cached_property
    def gold(self) -> list[str]:
        """The right steps, without lead-ins."""
        return list(self.bodies(SteadyPen(), random.Random(0)))

    @cached_property
    def answer(self) -> int:
        """The right final answer."""
        return final_number(self.gold[-1])

    def write(self, pen: Pen, rng: random.Random) -> str:
        """A whole solution in this pen's hand, ending in a boxed answer unless a slip derailed it."""
        steps: list[str] = []
        try:
            for body in self.bodies(pen, rng):
                steps.append(lead(rng, first=not steps) + body)
            steps.append(f"{CONCLUSION} is \\boxed{{{final_number(steps[-1])}}}.")
        except Derailed:
            pass
        return DELIMITER.join(steps)

    def judge(self) -> Judge:
        """A fresh judge for one solution; families whose steps may come in any order bring their own."""
        return InOrder(self.gold)


class Judge(Protocol):
    """Reads one solution step by step, all of them right so far."""

    def step(self, body: str) -> int | None:
        """Characters of `body` that are right before it goes wrong; None if the whole step is right."""
        ...

    def done(self) -> bool:
        """Whether the answer may be stated now."""
        ...


class InOrder:
    """The steps must be the gold ones, in their order."""

    def __init__(self, gold: list[str]) -> None:
        self._gold = gold
        self._index = 0

    def step(self, body: str) -> int | None:
        if self.done():
            return 0
        expected = self._gold[self._index]
        self._index += 1
        return None if body == expected else common_prefix(body, expected)

    def done(self) -> bool:
        return self._index == len(self._gold)


def common_prefix(a: str, b: str) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def final_number(body: str) -> int:
    """The last whole number in a step.

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


def lead(rng: random.Random, *, first: bool) -> str:
    """Words to open a step with: samples of one solution differ in surface, as people's do."""
    return rng.choice(("", "First, ", "We get ")) if first else rng.choice(("", "Then ", "Next, ", "So "))


def strip_lead(step: str) -> str:
    """The step without its opening words.

    >>> strip_lead("Next, f(3): 2")
    'f(3): 2'
    """
    return next((step[len(words) :] for words in LEADS if words and step.startswith(words)), step)
