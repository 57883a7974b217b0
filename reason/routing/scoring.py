"""A scorer's word on one step."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.core import Spent
from search.strategy import StepScorer
from search.tree import Step


async def score_step(scorer: StepScorer | None, before: Sequence[Step], step: Step) -> tuple[float | None, Spent]:
    """The step's score, None if it has none, and what reading cost. Who scores the same path later with the same scorer
    reads nothing again."""
    assert scorer is not None, "a router that needs a scorer was let through without one"
    scored = await scorer.score([[*before, step]])
    scores = scored.scores[0]
    return (scores[-1] if scores else None), scored.spent
