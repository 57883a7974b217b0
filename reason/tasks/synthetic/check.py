"""The exact step checker: where, if anywhere, a solution goes wrong."""

from __future__ import annotations

from dataclasses import dataclass

from reason.tasks.synthetic.exercise import CONCLUSION, DELIMITER, Exercise, common_prefix, strip_lead


@dataclass(frozen=True)
class Check:
    """What is right about a solution.

    right     for every step, whether everything up to and including it is right
    wrong_at  the character where the solution first goes wrong, None if it never does
    solved    all right, and finished
    """

    right: list[bool]
    wrong_at: int | None
    solved: bool


def check(exercise: Exercise, text: str) -> Check:
    """Judges every step of a solution (steps separated by blank lines) exactly, without any model.

    A right answer reached by a wrong step is not solved: this is stricter than grading the answer.
    """
    judge = exercise.judge()
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
                good = 0 if solved or not judge.done() else common_prefix(body, conclusion)
                solved = body == conclusion and good == len(body)
                deviates = None if solved else good
            else:
                deviates = 0 if solved else judge.step(body)
                solved = solved and deviates is None
            if deviates is not None:
                wrong_at = start + len(step) - len(body) + deviates
        right.append(wrong_at is None)
        start += len(step) + len(DELIMITER)
    return Check(right, wrong_at, solved and wrong_at is None)
