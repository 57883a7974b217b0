"""The reward model's word on one step."""

from __future__ import annotations

from decoding.core import Spent
from reason.arbitrage.base import Crossroads
from search.tree import Step


async def score_step(at: Crossroads, step: Step) -> tuple[float | None, Spent]:
    """The step's score, None if it has none, and what reading cost. A search that scores the same path later reads
    nothing again."""
    assert at.scorer is not None
    scored = await at.scorer.score([[*at.before, step]])
    scores = scored.scores[0]
    return (scores[-1] if scores else None), scored.spent
