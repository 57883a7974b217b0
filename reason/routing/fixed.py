"""One model writes all: the two ends of every comparison, and no routing at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reason.routing.base import Crossroads, Needs, Stateless, Verdict


@dataclass(frozen=True)
class Off:
    """No routing: the engine is the large model's alone, and no small one is loaded."""


@dataclass(frozen=True)
class DraftOnly(Stateless):
    """The small model writes every step."""

    needs: ClassVar[Needs] = "draft"
    needs_scorer: ClassVar[bool] = False

    async def read(self, at: Crossroads) -> Verdict:
        return Verdict("draft")


@dataclass(frozen=True)
class TargetOnly(Stateless):
    """The large model writes every step, and the small one is not asked."""

    needs: ClassVar[Needs] = "nothing"
    needs_scorer: ClassVar[bool] = False

    async def read(self, at: Crossroads) -> Verdict:
        return Verdict("target")
