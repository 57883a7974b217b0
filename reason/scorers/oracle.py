"""The gold answer as a scorer: the control that says what a search could do with a perfect judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar, NoReturn

from decoding.core import Tokens, Usage
from decoding.validation import require_positive, require_switch
from reason.grading.grader import Grader
from reason.problem import Problem
from reason.scorers.base import StatelessScorer
from search.strategy import ScoredPaths, StepScores
from search.tree import Step

ReadAnswer = Callable[[str], str | None]
"""The answer in the text of a path, or None."""


@dataclass(frozen=True, kw_only=True)
class OracleScorer(StatelessScorer):
    """Scores the last step of a path by the gold answer: 1 where the path's answer is right, else 0.

    A path without an answer has no score, so that a search is told nothing about what is not finished; with `steps` a
    complete step has 1 where the path is correct up to its end, else 0. For evaluation only: a problem without a gold
    answer is refused. Every row of a run says that its scorer is `oracle`.

    timeout_s  seconds for one comparison by computer algebra; an answer that takes longer counts as wrong
    steps      whether steps are scored, too, by the task's own checker; needs `Problem.check_prefix`
    """

    timeout_s: float = 5.0
    steps: bool = False
    grader: Grader = field(init=False, repr=False, compare=False)

    reads_gold: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive("timeout_s", self.timeout_s)
        require_switch("steps", self.steps)
        object.__setattr__(self, "grader", Grader(self.timeout_s))

    def bind(self, question: str, prompt: Tokens) -> NoReturn:
        """Raises ValueError: a question alone has no gold answer."""
        raise ValueError(
            "scorer=oracle knows the gold answers of a task and scores nothing else; choose another scorer"
        )

    def bind_problem(self, problem: Problem, read_answer: ReadAnswer) -> OraclePaths:
        """Returns the step scorer of one problem.

        Raises: ValueError for a problem without a gold answer, or with `steps` for one without a checker.
        """
        if problem.answer is None:
            raise ValueError(f"scorer=oracle needs gold answers, and {problem.id} has none; choose another scorer")
        self.validate_problem(problem)
        return OraclePaths(self.grader, problem.answer, read_answer, problem.check_prefix if self.steps else None)

    def validate_problem(self, problem: Problem) -> None:
        """Checks that steps can be scored where they are to be. Raises: ValueError."""
        if self.steps and problem.check_prefix is None:
            raise ValueError(
                "scorer.steps=true needs a task that can check steps, such as +task=synthetic, and "
                f"{problem.id} has no checker; leave out scorer.steps, or choose another scorer"
            )

    def close(self) -> None:
        """Ends the grading process if there is one."""
        self.grader.close()


@dataclass(frozen=True)
class OraclePaths:
    """A `StepScorer` of one problem; without `check_prefix` it scores answers alone."""

    grader: Grader
    gold: str
    read_answer: ReadAnswer
    check_prefix: Callable[[str], bool | None] | None = None

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`."""
        scores = [await asyncio.to_thread(self._score_path, path) for path in paths]
        return ScoredPaths(scores, Usage(scorer_calls=len(paths)))

    def _score_path(self, path: Sequence[Step]) -> StepScores | None:
        prefixes = list(accumulate(step.text for step in path))
        answer = self.read_answer(prefixes[-1]) if prefixes else None
        if answer is None and self.check_prefix is None:
            return None
        scores = [self._score_prefix(prefix) for prefix in prefixes]
        if answer is not None:
            scores[-1] = float(self.grader.grade(self.gold, answer).value == "right")
        return scores

    def _score_prefix(self, text: str) -> float | None:
        is_correct = None if self.check_prefix is None else self.check_prefix(text)
        return None if is_correct is None else float(is_correct)
