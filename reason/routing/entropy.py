"""Routes by the small model's uncertainty, after entropy adaptive decoding (EAD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.validation import require_not_negative
from reason.routing.base import RoutingContext, RoutingDecision, StatelessRouter


@dataclass(frozen=True, kw_only=True)
class EntropyRouter(StatelessRouter):
    """The target model writes the step if the small model was unsure of its own.

    threshold   nats per token: limit of minus the mean log-probability of the step's tokens, an estimate of its entropy

    EAD switches between tokens by the entropy of whole distributions; engines return the chosen tokens' alone.
    """

    threshold: float = 0.5
    needs_logprobs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_not_negative("threshold", self.threshold)

    async def choose_author(self, context: RoutingContext) -> RoutingDecision:
        assert context.small_step is not None
        mean_logprob = context.small_step.mean_logprob
        entropy = None if mean_logprob is None else -mean_logprob
        return RoutingDecision("target" if entropy is None or entropy > self.threshold else "draft", entropy)
