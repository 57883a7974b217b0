"""Routers that decide nothing: all steps from one model, the two ends of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reason.routing.base import RoutingContext, RoutingDecision, StatelessRouter, StepsRead


@dataclass(frozen=True)
class SmallModelOnly(StatelessRouter):
    """The small model writes every step."""

    async def choose_author(self, context: RoutingContext) -> RoutingDecision:
        return RoutingDecision("draft")


@dataclass(frozen=True)
class TargetModelOnly(StatelessRouter):
    """The target model writes every step; the small model generates nothing."""

    steps_read: ClassVar[StepsRead] = "none"

    async def choose_author(self, context: RoutingContext) -> RoutingDecision:
        return RoutingDecision("target")


@dataclass(frozen=True)
class NoRouting(TargetModelOnly):
    """Leaves the target model's engine as it is and loads no small model."""

    needs_small_model: ClassVar[bool] = False
