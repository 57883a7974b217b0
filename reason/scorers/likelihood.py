"""Scores a step by the writing model's own confidence; needs no second model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.core import Tokens, Usage
from reason.scorers.base import StatelessScorer
from search.strategy import ScoredPaths
from search.tree import Step


@dataclass(frozen=True)
class LikelihoodScorer(StatelessScorer):
    """Scores a step by the geometric mean of the probabilities of its tokens under the model that wrote it, in [0, 1].

    A baseline for every reward model. Paths with a step without log-probabilities are not scored. Free: no tokens are
    read, no calls are counted.

    >>> import asyncio
    >>> step = Step((7, 8), "ab", (math.log(0.5), math.log(0.125)))
    >>> scored = asyncio.run(LikelihoodScorer().score([[step], [Step((7,), "a")]]))
    >>> [None if s is None else [round(p, 3) for p in s] for s in scored.scores]
    [[0.25], None]
    """

    def bind(self, question: str, prompt: Tokens) -> LikelihoodScorer:
        """Returns itself: the score does not depend on the problem."""
        del question, prompt
        return self

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`."""
        return ScoredPaths([_score_path(path) for path in paths], Usage())


def _score_path(path: Sequence[Step]) -> list[float] | None:
    scores = []
    for step in path:
        mean_logprob = step.mean_logprob
        if mean_logprob is None or math.isnan(mean_logprob):
            return None
        scores.append(min(1.0, math.exp(mean_logprob)))  # rounding may put a log-probability slightly above zero
    return scores
