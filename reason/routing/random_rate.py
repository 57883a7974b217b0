"""Routes at random: the baseline of every router at the same rate."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.validation import require_share
from reason.routing.base import RoutingContext, RoutingDecision, StatelessRouter


@dataclass(frozen=True, kw_only=True)
class RandomRouter(StatelessRouter):
    """The target model writes a random share of the steps; the same steps for the same seeds.

    rate   in [0, 1]
    """

    rate: float = 0.5

    def __post_init__(self) -> None:
        require_share("rate", self.rate)

    async def choose_author(self, context: RoutingContext) -> RoutingDecision:
        uniform = context.seed / 2.0**63  # seeds are uniform in [0, 2^63)
        return RoutingDecision("target" if uniform < self.rate else "draft", uniform)
