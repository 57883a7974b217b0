"""A function of the user as a scorer, named on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from decoding.core import Tokens, Usage
from decoding.validation import is_number, require_switch
from reason.config.plugins import find_function, require_function
from reason.scorers.base import StatelessScorer
from search.strategy import ScoredPaths, StepScores
from search.tree import Step


@dataclass(frozen=True, kw_only=True)
class FunctionScorer(StatelessScorer):
    """Scores paths by `function(question, steps)`, where `steps` is a list of texts.

    It returns a number from 0 to 1 for the path as a whole, or a list with one for each step; None, in the list or for
    all of it, is "not scored". It is called in threads, perhaps in several at a time.

    function          MODULE:NAME, of a module that `plugins` lists; without one `validate` fails
    judges_solutions  whether a score is a probability that the solution is right

    Raises: ValueError naming the knob, its constraint and its value.
    """

    function: str | None
    judges_solutions: bool = False

    def __post_init__(self) -> None:
        require_switch("judges_solutions", self.judges_solutions)
        if self.function is not None:  # else `validate` asks for one
            require_function(self.function)

    @cached_property
    def called(self) -> Callable[[str, list[str]], object]:
        """The function. Raises: ValueError if the module has none of this name, or none was named."""
        return find_function("scorer.function", self.function)

    def validate(self) -> None:
        """Looks the function up. Raises: as `called`."""
        _ = self.called

    def bind(self, question: str, prompt: Tokens) -> FunctionPaths:
        """See `base.Scorer`."""
        del prompt
        return FunctionPaths(self, question)


@dataclass(frozen=True)
class FunctionPaths:
    """A `StepScorer` of one problem."""

    scorer: FunctionScorer
    question: str

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`. Raises: ValueError for what is no score, and what the function raises."""
        scores = [await asyncio.to_thread(self._score_path, [step.text for step in path]) for path in paths]
        return ScoredPaths(scores, Usage(scorer_calls=len(paths)))

    def _score_path(self, texts: list[str]) -> StepScores | None:
        returned = self.scorer.called(self.question, texts)
        if returned is None:
            return None
        given = list(returned) if isinstance(returned, list | tuple) else [*[None] * (len(texts) - 1), returned]
        scores = [float(value) if is_number(value, low=0, high=1) else None for value in given]
        if len(given) != len(texts) or any(s is None is not value for s, value in zip(scores, given, strict=True)):
            raise ValueError(
                f"scorer.function={self.scorer.function} must return a number from 0 to 1, or one (or None) for each "
                f"of {len(texts)} steps, got {returned!r}"
            )
        return scores
