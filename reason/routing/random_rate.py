"""Escalation by lot: what a router has to beat at the same rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.validation import require_share
from reason.routing.base import Crossroads, Needs, Stateless, Verdict


@dataclass(frozen=True, kw_only=True)
class RandomRate(Stateless):
    """The large model writes this share of the steps, whichever they are; the same ones for the same seeds.

    rate   in [0, 1]
    """

    rate: float = 0.5
    needs: ClassVar[Needs] = "draft"
    needs_scorer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_share("rate", self.rate)

    async def read(self, at: Crossroads) -> Verdict:
        drawn = at.seed / 2.0**63
        return Verdict("target" if drawn < self.rate else "draft", drawn)
