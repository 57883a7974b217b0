"""As many guesses as pay: nodes best-first over the whole batch, while the next one raises tokens per second.

With B branches a round commits B tokens plus, in expectation, the sum of its draft nodes' chances of being
accepted, and takes what the cost curve says. Taking the likeliest nodes first, the rate rises and then falls;
the round stops at the top, which may be at no nodes at all (DESIGN D4). Where even that is slower than not to draft,
rounds are plain, trials apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from decoding.speculation.controllers.cost_curve import CostCurve
from decoding.speculation.controllers.speculation_probe import Trials
from decoding.speculation.interfaces import Branch, Feedback, Load, Plan, Price, RoundCost
from decoding.validation import is_count

_LESSONS = 4  # of so many plain rounds the drafter learns from one: it may be needed again, and learning takes time


@dataclass
class Throughput:
    """Implements `Controller`.

    most_rows   draft nodes of a round at most
    curve       what rounds cost; given one measured at start-up it decides well from the first round on
    """

    most_rows: int = 512
    curve: CostCurve = field(default_factory=CostCurve)
    trials: Trials = field(default_factory=Trials, repr=False)
    fills_template: ClassVar[bool] = False
    _rounds: int = field(default=0, init=False, repr=False)
    _guessed: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        if not is_count(self.most_rows):
            raise ValueError(f"most_rows must be an int >= 0, got {self.most_rows!r}")

    def plan(self, branches: Sequence[Branch], load: Load) -> Plan:
        self._rounds += 1
        self._guessed = self.trials.guess(len(branches))
        if not self._guessed:
            return Plan((0,) * len(branches), 0, learn=self._rounds % _LESSONS == 0)
        total = min(self.most_rows, load.spare_rows)
        price = Price(self.curve.seconds(len(branches), 0, load.context_tokens), self.curve.per_row)
        return Plan((total,) * len(branches), total, price)

    def plain_seconds(self, branches: int, context_tokens: int) -> float:
        return self.curve.seconds(branches, 0, context_tokens) * (self.trials.plain_cost(branches) or 1.0)

    def pace(self, costs: Sequence[RoundCost]) -> None:
        self.curve = CostCurve(tuple(costs))

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        if cost is None:
            return
        tokens = sum(1 + len(seen.accepted) for seen in feedback)
        expected = self.curve.seconds(cost.branches, 0, cost.context_tokens)
        self.trials.observe(cost.branches, guessed=self._guessed, tokens=tokens, cost=cost.seconds / expected)
        self.curve.observe(cost)
