"""Is an answer the gold answer? Rules first, then a computer algebra system in a process that may be killed."""

from reason.grading.grade import NO_ANSWER, NO_GOLD, RIGHT, WRONG, Grade, ungraded
from reason.grading.grader import Grader

__all__ = ["NO_ANSWER", "NO_GOLD", "RIGHT", "WRONG", "Grade", "Grader", "ungraded"]
