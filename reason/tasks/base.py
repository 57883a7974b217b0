"""Defines a task: an indexable list of problems, a way to find an answer in a text, and a grade for an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from decoding.validation import MAX_INT, is_count, require_count, shorten
from reason.grading import NO_ANSWER, NO_GOLD, RIGHT, WRONG, Grade, Grader, ungraded_because
from reason.grading.answer import canonical_answer, find_answer
from reason.problem import Problem
from search.seeds import derive_seed

__all__ = ["NO_ANSWER", "NO_GOLD", "RIGHT", "WRONG", "Grade", "Task", "ungraded_because", "validate_subset"]


class Task:
    """Problems with unique, stable ids such as `aime24/60`, and how to grade their answers.

    `shuffle_seed` orders the problems by a hash of seed and id, so that the order does not depend on the rest of the
    list; then `offset` problems are skipped and at most `limit` kept.
    `find` reads the final answer in a text. A subclass provides the problems and may override the grading.

    Raises: ValueError for wrong settings, for ids that are not unique, and if no problem is left.

    >>> sums = [Problem(id=f"sums/{i}", question=f"{i} + 1?", answer=str(i + 1)) for i in range(5)]
    >>> task = Task("sums", sums, limit=2)
    >>> len(task), task[1].id, str(task.grade(task[1], "2")), str(task.grade_text(task[1], r"so \\boxed{3}"))
    (2, 'sums/1', 'right', 'wrong')
    """

    def __init__(
        self,
        name: str,
        problems: Sequence[Problem],
        *,
        limit: int | None = None,
        offset: int = 0,
        shuffle_seed: int | None = None,
        find: Callable[[str], str | None] = find_answer,
        timeout_s: float = 5.0,
    ) -> None:
        validate_subset(limit=limit, offset=offset, shuffle_seed=shuffle_seed)
        twice = [i for i, count in Counter(p.id for p in problems).items() if count > 1]
        if twice:
            raise ValueError(f"{name}: problem ids must be unique, but {twice[0]!r} occurs more than once")
        chosen = list(problems)
        if shuffle_seed is not None:
            chosen.sort(key=lambda p: derive_seed("shuffle", shuffle_seed, p.id))
        chosen = chosen[offset:][:limit]
        if not chosen:
            raise ValueError(f"task.offset={offset} leaves none of the {len(problems)} problems of {name}")
        self.name = name
        self.find = find
        self._problems = chosen
        self._grader = Grader(timeout_s)

    def __len__(self) -> int:
        return len(self._problems)

    def __getitem__(self, index: int) -> Problem:
        return self._problems[index]

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._problems)

    def extract_answer(self, text: str) -> str | None:
        """Returns the final answer in a text, in its canonical spelling, or None."""
        answer = self.find(text)
        return None if answer is None else canonical_answer(answer) or None

    def grade(self, problem: Problem, answer: str | None) -> Grade:
        """Grades a final answer, or a text that marks one; blocks for seconds at worst, never raises."""
        return self._grader.grade(problem.answer, self._final_answer(answer))

    def grade_text(self, problem: Problem, text: str) -> Grade:
        """Grades a whole solution: `no_answer` unless `find` finds an answer."""
        return self._grader.grade(problem.answer, self.extract_answer(text))

    def close(self) -> None:
        """Ends the grading process if there is one; garbage collection of the task ends it too."""
        self._grader.close()

    def _final_answer(self, answer: str | None) -> str | None:
        return answer if answer is None else self.find(answer) or answer


def validate_subset(*, limit: int | None, offset: int, shuffle_seed: int | None) -> None:
    """Raises ValueError naming the setting. Call it before data is loaded, so that a typo fails at once."""
    require_count("task.limit", limit, at_least=1, at_most=MAX_INT, or_null=True)
    require_count("task.offset", offset, at_most=MAX_INT)
    if shuffle_seed is not None and not is_count(shuffle_seed, at_least=-MAX_INT, at_most=MAX_INT):
        raise ValueError(f"task.shuffle_seed must be an int of 64 bits or null, got {shorten(shuffle_seed)}")
