"""Checks the steps of a solution exactly, without a model."""

from __future__ import annotations

from dataclasses import dataclass

from reason.tasks.synthetic.exercise import CONCLUSION, DELIMITER, Exercise, common_prefix, strip_lead


@dataclass(frozen=True)
class SolutionCheck:
    """Result of a check.

    correct_steps  per step, whether the solution is correct up to its end
    first_error    index of the first wrong character, None if there is none
    is_solved      all steps are correct and the last one is the conclusion
    """

    correct_steps: list[bool]
    first_error: int | None
    is_solved: bool


def check_solution(exercise: Exercise, text: str) -> SolutionCheck:
    """Checks every step of a solution; steps are separated by blank lines.

    A correct answer after a wrong step is not solved: this is stricter than grading the answer.
    """
    judge = exercise.step_checker()
    conclusion = f"{CONCLUSION} is \\boxed{{{exercise.answer}}}."
    steps = text.removesuffix(DELIMITER).split(DELIMITER)
    right: list[bool] = []
    wrong_at: int | None = None
    solved = False
    start = 0
    for step in steps:
        if wrong_at is None:
            body = strip_lead(step)
            if body.startswith(CONCLUSION):
                good = 0 if solved or not judge.is_done() else common_prefix(body, conclusion)
                solved = body == conclusion and good == len(body)
                deviates = None if solved else good
            else:
                deviates = 0 if solved else judge.check_step(body)
                solved = solved and deviates is None
            if deviates is not None:
                wrong_at = start + len(step) - len(body) + deviates
        right.append(wrong_at is None)
        start += len(step) + len(DELIMITER)
    return SolutionCheck(right, wrong_at, solved and wrong_at is None)


def check_prefix(exercise: Exercise, text: str) -> bool | None:
    """Checks the beginning of a solution: whether its complete steps are correct; None where the last is not complete.

    A step is complete with the blank line behind it.
    """
    complete = text[: text.rfind(DELIMITER) + len(DELIMITER)] if DELIMITER in text else ""
    if complete and not all(check_solution(exercise, complete).correct_steps):
        return False
    return True if complete == text else None
