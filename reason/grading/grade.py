"""What comparing an answer with the gold answer gave: right, wrong, no answer, or not graded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Grade:
    """One of four values; `reason` says why where the value alone does not.

    right      equal to the gold answer
    wrong      an answer, but another one
    no_answer  the text has no final answer: kept apart from `wrong` in every record
    ungraded   there is no gold answer, or the comparison did not end

    >>> RIGHT.right, WRONG.right, NO_ANSWER.right, NO_GOLD.right, str(ungraded("took too long"))
    (True, False, False, None, 'ungraded')
    """

    value: Literal["right", "wrong", "no_answer", "ungraded"]
    reason: str = ""

    @property
    def right(self) -> bool | None:
        """What accuracy counts: True or False, and None only where there is no gold answer.

        A comparison that did not end counts as not right, so that a failing grader cannot raise an accuracy.
        """
        return None if self == NO_GOLD else self.value == "right"

    def __str__(self) -> str:
        return self.value


def ungraded(reason: str) -> Grade:
    """The comparison could not be made, and why."""
    return Grade("ungraded", reason)


RIGHT = Grade("right")
WRONG = Grade("wrong")
NO_ANSWER = Grade("no_answer")
NO_GOLD = ungraded("no gold answer")
