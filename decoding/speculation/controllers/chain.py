"""One path of the same length for every branch in every round, as most engines draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.controllers.template import even
from decoding.speculation.interfaces import Branch, Feedback, Load, Plan, RoundCost, Template
from decoding.validation import is_count


@dataclass(frozen=True)
class Chain:
    """`length` guesses in a row."""

    length: int = 5
    fills_template: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not is_count(self.length):
            raise ValueError(f"length must be an int >= 0, got {self.length!r}")

    def plan(self, branches: Sequence[Branch], load: Load) -> Plan:
        return even(Template.chain(self.length), self.length, branches, load)

    def plain_seconds(self, branches: int, context_tokens: int) -> float:
        return 0.0

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        """Nothing to learn."""
