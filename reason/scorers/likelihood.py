"""Score a step by how sure its writer was; needs no second model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from decoding.core import Spent, Tokens
from search.strategy import ScoredPaths
from search.tree import Step


@dataclass(frozen=True)
class Likelihood:
    """The geometric mean of the probabilities the writer gave to the step's own tokens, in [0, 1].

    A baseline every reward model has to beat. Steps written without log-probabilities leave their path
    unscored. Costs nothing: no tokens are run, no calls are counted.

    >>> import asyncio
    >>> step = Step((7, 8), "ab", (math.log(0.5), math.log(0.125)))
    >>> scored = asyncio.run(Likelihood().score([[step], [Step((7,), "a")]]))
    >>> [None if s is None else [round(p, 3) for p in s] for s in scored.scores]
    [[0.25], None]
    """

    def check(self) -> None:
        """Nothing can be wrong."""

    def load(self, writer: Any = None) -> None:
        """Nothing to load."""
        del writer

    def close(self) -> None:
        """Nothing to give back."""

    def bind(self, question: str, prompt: Tokens) -> Likelihood:
        """Itself: the score does not depend on the problem."""
        del question, prompt
        return self

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`."""
        return ScoredPaths([_path_scores(path) for path in paths], Spent())


def _path_scores(path: Sequence[Step]) -> list[float] | None:
    scores = []
    for step in path:
        mean = step.mean_logprob
        if mean is None or math.isnan(mean):
            return None
        scores.append(min(1.0, math.exp(mean)))  # rounding may put a log-probability a hair above zero
    return scores
