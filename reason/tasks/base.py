"""A task is an indexable list of problems, a way to find an answer in a text, and a grade for an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from decoding.validation import is_count
from reason.grading import NO_ANSWER, NO_GOLD, RIGHT, WRONG, Grade, Grader, ungraded
from reason.grading.answer import canonical, find_answer
from reason.problem import Problem
from search.seeds import derive_seed

__all__ = ["NO_ANSWER", "NO_GOLD", "RIGHT", "WRONG", "Grade", "Task", "check_subset", "ungraded"]


class Task:
    """Problems with unique, stable ids such as `aime24/60`, and how to grade their answers.

    `shuffle_seed` puts the problems in an order of its own (by a hash of seed and id, so that it does not
    depend on what else is in the list), then `offset` problems are skipped and at most `limit` kept.
    `find` reads the final answer in a text. A subclass says what its problems are, and may grade otherwise.

    Raises: ValueError for nonsense, for ids that are not unique, and when nothing is left.

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
        check_subset(limit=limit, offset=offset, shuffle_seed=shuffle_seed)
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

    def answer_of(self, text: str) -> str | None:
        """The final answer in a text in the spelling under which votes are counted, or None."""
        found = self.find(text)
        return None if found is None else canonical(found) or None

    def grade(self, problem: Problem, answer: str | None) -> Grade:
        """The grade of a final answer, or of a text that marks one; blocks for seconds at worst, never raises."""
        return self._grader.grade(problem.answer, self._final(answer))

    async def agrade(self, problem: Problem, answer: str | None) -> Grade:
        """`grade` for coroutines."""
        return await self._grader.agrade(problem.answer, self._final(answer))

    def grade_text(self, problem: Problem, text: str) -> Grade:
        """The grade of a whole solution: `no_answer` unless `find` finds one."""
        return self._grader.grade(problem.answer, self.answer_of(text))

    def close(self) -> None:
        """End the grading process, if there is one; happens by itself when the task goes."""
        self._grader.close()

    def _final(self, answer: str | None) -> str | None:
        return answer if answer is None else self.find(answer) or answer


def check_subset(*, limit: int | None, offset: int, shuffle_seed: int | None) -> None:
    """Raises ValueError naming the knob. Called before any data is loaded, so that a typo fails at once."""
    if not (limit is None or is_count(limit, at_least=1)):
        raise ValueError(f"task.limit must be an int >= 1 or null, got {limit!r}")
    if not is_count(offset):
        raise ValueError(f"task.offset must be an int >= 0, got {offset!r}")
    if not (shuffle_seed is None or (isinstance(shuffle_seed, int) and not isinstance(shuffle_seed, bool))):
        raise ValueError(f"task.shuffle_seed must be an int or null, got {shuffle_seed!r}")
