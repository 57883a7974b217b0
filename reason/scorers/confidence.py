"""Scores a path by the writing model's confidence in its tokens (DeepConf); needs no second model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoding.core import MAX_NUM_TOP, Tokens
from decoding.validation import require_choice, require_count, require_share
from reason.scorers.base import StatelessScorer
from search.confidence import MAX_CONFIDENCE, MEASURES, ConfidenceMeasure, measure_confidence
from search.strategy import ScoredPaths
from search.tree import Step


@dataclass(frozen=True, kw_only=True)
class ConfidenceScorer(StatelessScorer):
    """Scores the last step of a path by the confidence of all tokens of the path, divided by its maximum, in [0, 1].

    The steps before it are left out: the confidence is that of the path, however its steps are aggregated. The map is a
    multiple, so that votes weighted by scores are votes weighted by confidences (DeepConf, arXiv 2508.15260, section
    3.2). Tokens that were put in have no confidence and do not count. A path without any is not scored.

    measure   `mean` of all tokens; `window`, the lowest mean of `window` successive tokens; `bottom`, the mean of this
              share of such groups, the lowest ones; `tail`, the mean of the last `tail` tokens
    num_top   most likely tokens that the confidence of a token is the mean of

    Raises: ValueError naming the knob, its constraint and its value.

    >>> import asyncio
    >>> step = Step((7, 8), "ab", confidences=np.array([5, 15], dtype=np.float32))
    >>> asyncio.run(ConfidenceScorer().score([[step, step], [Step((7,), "a")]])).scores
    [[None, 0.2], None]
    """

    measure: ConfidenceMeasure = "mean"
    window: int = 2048
    bottom: float = 0.1
    tail: int = 2048
    num_top: int = MAX_NUM_TOP

    def __post_init__(self) -> None:
        require_choice("measure", self.measure, MEASURES)
        require_count("window", self.window, at_least=1)
        require_share("bottom", self.bottom, above_zero=True)
        require_count("tail", self.tail, at_least=1)
        require_count("num_top", self.num_top, at_least=1, at_most=MAX_NUM_TOP)

    def bind(self, question: str, prompt: Tokens) -> ConfidenceScorer:
        """Returns itself: the score does not depend on the problem."""
        del question, prompt
        return self

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`."""
        return ScoredPaths([self._score_path(path) for path in paths])

    def _score_path(self, path: Sequence[Step]) -> list[float | None] | None:
        measured = [step.confidences for step in path if step.confidences is not None]
        if not path or len(measured) < len(path):
            return None
        confidence = measure_confidence(
            np.concatenate(measured), self.measure, window=self.window, bottom=self.bottom, tail=self.tail
        )
        return None if confidence is None else [*[None] * (len(path) - 1), confidence / MAX_CONFIDENCE]
