"""Routes by the reward model's score of the small model's step: RSD (arXiv 2501.19324)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.validation import require_share
from reason.routing.base import RoutingContext, RoutingDecision, StatelessRouter, score_step


@dataclass(frozen=True, kw_only=True)
class RewardThresholdRouter(StatelessRouter):
    """The target model writes the step if the small model's scores below `threshold`, or has no score.

    threshold   in [0, 1]; 0.7 as published
    """

    threshold: float = 0.7
    needs_scorer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_share("threshold", self.threshold)

    async def choose_author(self, context: RoutingContext) -> RoutingDecision:
        assert context.small_step is not None
        score, usage = await score_step(context.scorer, context.previous_steps, context.small_step)
        return RoutingDecision("target" if score is None or score < self.threshold else "draft", score, usage)
