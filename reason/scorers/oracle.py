"""The gold answer as a scorer: the control that says what a search could do with a perfect judge of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NoReturn

from decoding.core import Tokens, Usage
from decoding.validation import require_positive
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

    A path without an answer has no score, so that a search is told nothing about what is not finished. For evaluation
    only: a problem without a gold answer is refused. Every row of a run says that its scorer is `oracle`.

    timeout_s  seconds for one comparison by computer algebra; an answer that takes longer counts as wrong
    """

    timeout_s: float = 5.0
    grader: Grader = field(init=False, repr=False, compare=False)

    reads_gold: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive("timeout_s", self.timeout_s)
        object.__setattr__(self, "grader", Grader(self.timeout_s))

    def bind(self, question: str, prompt: Tokens) -> NoReturn:
        """Raises ValueError: a question alone has no gold answer."""
        raise ValueError(
            "scorer=oracle knows the gold answers of a task and scores nothing else; choose another scorer"
        )

    def bind_problem(self, problem: Problem, read_answer: ReadAnswer) -> OraclePaths:
        """Returns the step scorer of one problem. Raises: ValueError for a problem without a gold answer."""
        if problem.answer is None:
            raise ValueError(f"scorer=oracle needs gold answers, and {problem.id} has none; choose another scorer")
        return OraclePaths(self.grader, problem.answer, read_answer)

    def close(self) -> None:
        """Ends the grading process if there is one."""
        self.grader.close()


@dataclass(frozen=True)
class OraclePaths:
    """A `StepScorer` of one problem."""

    grader: Grader
    gold: str
    read_answer: ReadAnswer

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`."""
        scores = [await asyncio.to_thread(self._score_path, path) for path in paths]
        return ScoredPaths(scores, Usage(scorer_calls=len(paths)))

    def _score_path(self, path: Sequence[Step]) -> StepScores | None:
        answer = self.read_answer("".join(step.text for step in path))
        if answer is None or not path:
            return None
        is_right = self.grader.grade(self.gold, answer).value == "right"
        return [*[None] * (len(path) - 1), float(is_right)]
