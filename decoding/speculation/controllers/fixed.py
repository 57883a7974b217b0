"""The same number of draft nodes in every round, wherever in the batch acceptance is likeliest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.interfaces import Branch, Feedback, Load, Plan, RoundCost
from decoding.validation import is_count


@dataclass(frozen=True)
class Fixed:
    """`nodes` per branch on average; 0 is plain decoding."""

    nodes: int = 0
    fills_template: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not is_count(self.nodes):
            raise ValueError(f"nodes must be an int >= 0, got {self.nodes!r}")

    def plan(self, branches: Sequence[Branch], load: Load) -> Plan:
        total = min(self.nodes * len(branches), load.spare_rows)
        return Plan((total,) * len(branches), total)

    def plain_seconds(self, branches: int, context_tokens: int) -> float:
        return 0.0

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        """Nothing to learn."""
