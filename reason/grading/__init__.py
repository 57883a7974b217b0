"""Grades answers against gold answers: by rules, then by computer algebra in a process that can be killed."""

from reason.grading.grade import NO_ANSWER, NO_GOLD, RIGHT, WRONG, Grade, ungraded_because
from reason.grading.grader import Grader

__all__ = ["NO_ANSWER", "NO_GOLD", "RIGHT", "WRONG", "Grade", "Grader", "ungraded_because"]
