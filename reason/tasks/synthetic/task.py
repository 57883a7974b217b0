"""Provides synthetic problems as a task: drawn from a seed, with a difficulty, from one of two disjoint splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import ClassVar

from decoding.validation import MAX_INT, MAX_VALUE, is_count, require_count, require_not_negative, shorten
from reason.grading import Grade
from reason.problem import Problem
from reason.tasks.base import RIGHT, WRONG, Task, validate_subset
from reason.tasks.synthetic.draw import SPLITS, Split, distinct_exercises
from reason.tasks.synthetic.exercise import Exercise
from reason.tasks.synthetic.families import FAMILIES
from reason.tasks.synthetic.step_checker import check_prefix, check_solution


class Synthetic(Task):
    """`size` different problems, the first ones of the endless sequence of a `seed`.

    `families` are names, or names with weights; `difficulty` is one number or [lowest, highest], clipped to what a
    family has: the number of values to compute. `split` is `heldout` (never seen in training) or `train`.

    Answers are graded like any other; families marked `verifier_only` (Countdown, whose answer is its own target)
    are graded by checking every step, so a text is needed for them.

    Raises: ValueError naming the knob and the valid choices.

    >>> task = Synthetic(families=["recurrence"], difficulty=2, size=3)
    >>> len(task), task[0].id, task[0].meta["difficulty"]
    (3, 'synthetic/heldout/0/0', 2)
    """

    default_name: ClassVar[str] = "synthetic"
    table: ClassVar[Mapping[str, type[Exercise]]] = FAMILIES
    """The families to draw from, by name; a subclass has others."""
    checks_steps: ClassVar[bool] = True
    """Whether the beginning of a solution can be checked."""

    def __init__(
        self,
        *,
        name: str | None = None,
        families: Sequence[str] | Mapping[str, float] | None = None,
        difficulty: int | Sequence[int] = (1, 2),
        size: int = 200,
        split: Split = "heldout",
        seed: int = 0,
        limit: int | None = None,
        offset: int = 0,
        shuffle_seed: int | None = None,
    ) -> None:
        validate_subset(limit=limit, offset=offset, shuffle_seed=shuffle_seed)
        name = self.default_name if name is None else name
        families = tuple(self.table) if families is None else families
        weights = dict(families) if isinstance(families, Mapping) else dict.fromkeys(families, 1.0)
        if not weights or (unknown := sorted(weights.keys() - self.table.keys())):
            wrong = unknown if weights else "none"
            raise ValueError(f"task.families must be from {', '.join(self.table)}; got {wrong}")
        if split not in SPLITS:
            raise ValueError(f"task.split must be one of {', '.join(SPLITS)}; got {split!r}")
        require_count("task.size", size, at_least=1)
        require_count("task.seed", seed, at_least=-MAX_INT, at_most=MAX_INT)
        for family, weight in weights.items():
            require_not_negative(f"task.families.{family}", weight)
        if not any(weights.values()):
            raise ValueError("task.families must have a weight above 0")
        drawn = distinct_exercises(seed, split, weights=weights, difficulties=_span(difficulty), families=self.table)
        self._exercises: dict[str, Exercise] = {
            f"{name}/{split}/{seed}/{index}": exercise for index, exercise in enumerate(islice(drawn, size))
        }
        if len(self._exercises) < size:
            raise ValueError(
                f"task.size must be at most {len(self._exercises)}, the number of different problems of these families "
                f"and difficulties, got {size}"
            )
        problems = [self._make_problem(id_, exercise) for id_, exercise in self._exercises.items()]
        super().__init__(name, problems, limit=limit, offset=offset, shuffle_seed=shuffle_seed)

    def _make_problem(self, id_: str, exercise: Exercise) -> Problem:
        return Problem(
            id=id_,
            question=exercise.question,
            answer=str(exercise.answer),
            meta={
                "family": exercise.family,
                "difficulty": exercise.difficulty,
                "verifier_only": exercise.verifier_only,
            },
            check_prefix=partial(check_prefix, exercise) if self.checks_steps else None,
        )

    def grade_text(self, problem: Problem, text: str) -> Grade:
        """Grades the answer; a verifier-only problem is right only if every step is correct."""
        grade = super().grade_text(problem, text)
        exercise = self._exercises[problem.id]
        if grade == RIGHT and exercise.verifier_only and not check_solution(exercise, text).is_solved:
            return WRONG
        return grade


def _span(difficulty: int | Sequence[int]) -> tuple[int, int]:
    span = tuple(difficulty) if isinstance(difficulty, list | tuple) else (difficulty, difficulty)
    if len(span) != 2 or not all(is_count(d, at_least=1, at_most=MAX_VALUE) for d in span) or span[0] > span[1]:
        raise ValueError(f"task.difficulty must be an int >= 1 or [lowest, highest], got {shorten(difficulty)}")
    return span[0], span[1]
