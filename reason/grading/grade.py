"""Defines the grade of an answer: right, wrong, no answer, or not graded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GradeValue = Literal["right", "wrong", "no_answer", "ungraded"]


@dataclass(frozen=True)
class Grade:
    """Result of comparing an answer with the gold answer; `reason` explains it where the value alone does not.

    right      equal to the gold answer
    wrong      an answer that differs from it
    no_answer  the text has no final answer: kept apart from `wrong` in every record
    ungraded   there is no gold answer, or the comparison did not end

    >>> [grade.is_correct for grade in (RIGHT, WRONG, NO_ANSWER, NO_GOLD, ungraded_because("took too long"))]
    [True, False, False, None, False]
    """

    value: GradeValue
    reason: str = ""

    @property
    def is_correct(self) -> bool | None:
        """True or False as accuracy counts it; None only where there is no gold answer.

        A comparison that did not end counts as not right, so that a failing grader cannot raise an accuracy.
        """
        return None if self == NO_GOLD else self.value == "right"

    def __str__(self) -> str:
        return self.value


def ungraded_because(reason: str) -> Grade:
    """Returns the grade of a comparison that could not be made."""
    return Grade("ungraded", reason)


RIGHT = Grade("right")
WRONG = Grade("wrong")
NO_ANSWER = Grade("no_answer")
NO_GOLD = ungraded_because("no gold answer")
