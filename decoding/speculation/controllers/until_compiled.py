"""Decodes without drafts until the loops of drafts are compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from decoding.speculation.controllers.draft_memory import DraftMemory, MemoryLimited
from decoding.speculation.controllers.seconds_saved import find_seconds_saved
from decoding.speculation.interfaces import BatchLoad, Branch, Controller, DraftPlan, Feedback, RoundCost, TrustsDrafter


@dataclass
class PlainUntilCompiled:
    """Implements `Controller`: plain rounds until `are_compiled`, and from then on those that `controller` plans.

    The texts are the same, as drafts change none; without it the first start would wait for them. Nothing is learned
    before, as that too has loops.
    """

    controller: Controller
    are_compiled: Callable[[], bool]
    _has_begun: bool = False

    @property
    def uses_template(self) -> bool:
        return self.controller.uses_template

    @property
    def seconds_saved(self) -> float | None:
        return find_seconds_saved(self.controller)

    def set_memory(self, memory: DraftMemory) -> None:
        if isinstance(self.controller, MemoryLimited):
            self.controller.set_memory(memory)

    def trust_drafter(self) -> None:
        if isinstance(self.controller, TrustsDrafter):
            self.controller.trust_drafter()

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        self._has_begun = self._has_begun or self.are_compiled()
        if not self._has_begun:
            return DraftPlan((0,) * len(branches), 0, collect_feedback=False)
        return self.controller.plan_drafts(branches, load)

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        if self._has_begun:
            self.controller.observe(feedback, cost)
