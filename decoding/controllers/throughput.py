"""As many guesses as pay: nodes best-first over the whole batch, while the next one raises tokens per second.

With B branches a round commits B tokens plus, in expectation, the sum of its draft nodes' chances of being
accepted, and takes what the cost curve says. Taking the likeliest nodes first, the rate rises and then falls;
the round stops at the top, which may be at no nodes at all (DESIGN D4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from decoding.controllers.cost_curve import CostCurve
from decoding.core import is_count
from decoding.speculation import Branch, Feedback, Load, Plan, Price, RoundCost


@dataclass
class Throughput:
    """Implements `Controller`.

    most_rows   draft nodes of a round at most
    curve       what rounds cost; given one measured at start-up it decides well from the first round on
    """

    most_rows: int = 512
    curve: CostCurve = field(default_factory=CostCurve)
    fills_template: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not is_count(self.most_rows):
            raise ValueError(f"most_rows must be an int >= 0, got {self.most_rows!r}")

    def plan(self, branches: Sequence[Branch], load: Load) -> Plan:
        total = min(self.most_rows, load.spare_rows)
        price = Price(self.plain_seconds(len(branches), load.context_tokens), self.curve.per_row)
        return Plan((total,) * len(branches), total, price)

    def plain_seconds(self, branches: int, context_tokens: int) -> float:
        return self.curve.seconds(branches, 0, context_tokens)

    def pace(self, costs: Sequence[RoundCost]) -> None:
        self.curve = CostCurve(tuple(costs))

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        if cost is not None:
            self.curve.observe(cost)
