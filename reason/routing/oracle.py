"""Upper bound of step-level routing: both models write, the reward model chooses (arXiv 2512.05033, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.core import Usage
from decoding.validation import require_number
from reason.routing.base import RoutingContext, RoutingDecision, StatelessRouter, StepsRead, score_step


@dataclass(frozen=True, kw_only=True)
class OracleRouter(StatelessRouter):
    """The target model's step is accepted if it scores more than `threshold` above the small model's. Both models write
    every step, so that it saves nothing.

    threshold   in [-1, 1]; 0 keeps the better step
    """

    threshold: float = 0.0
    steps_read: ClassVar[StepsRead] = "both"
    needs_scorer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_number("threshold", self.threshold, low=-1, high=1)

    async def choose_author(self, context: RoutingContext) -> RoutingDecision:
        return self.choose_better(*await score_both_steps(context))

    def choose_better(self, small_score: float | None, target_score: float | None, usage: Usage) -> RoutingDecision:
        """Returns the decision on two scores: the target model's step where one score is missing."""
        if small_score is None or target_score is None:
            return RoutingDecision("target", None, usage)
        advantage = target_score - small_score
        return RoutingDecision("target" if advantage > self.threshold else "draft", advantage, usage)


async def score_both_steps(context: RoutingContext) -> tuple[float | None, float | None, Usage]:
    """Returns the scores of the small and of the target model's step (None: no score), and the cost."""
    assert context.small_step is not None
    assert context.target_step is not None
    small_score, small_usage = await score_step(context.scorer, context.previous_steps, context.small_step)
    target_score, target_usage = await score_step(context.scorer, context.previous_steps, context.target_step)
    return small_score, target_score, small_usage + target_usage
