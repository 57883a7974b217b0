"""SmartSpec: a chain for each branch, as long as its own acceptance makes it worth the batch's time (arXiv 2406.14066).

With acceptance rate a, a chain of k commits (1 - a^(k+1)) / (1 - a) tokens in expectation. Goodput is the sum of those
over the seconds of the round. Chains are lengthened one guess at a time where that adds most, until goodput falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import ClassVar

from decoding.speculation.controllers.cost_curve import CostCurve
from decoding.speculation.interfaces import Branch, Feedback, Load, Plan, RoundCost, Template
from decoding.validation import is_count

_REMEMBERED = 4096  # branches


@dataclass
class Goodput:
    """Implements `Controller`.

    longest    guesses per branch at most
    smoothing  weight of the newest guess in a branch's moving acceptance rate
    first      the rate of a branch nothing is known of
    """

    longest: int = 16
    smoothing: float = 0.1
    first: float = 0.7
    curve: CostCurve = field(default_factory=CostCurve)
    _rates: dict[int, float] = field(init=False, default_factory=dict, repr=False)
    fills_template: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not is_count(self.longest):
            raise ValueError(f"longest must be an int >= 0, got {self.longest!r}")
        for name in ("smoothing", "first"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)!r}")

    def plan(self, branches: Sequence[Branch], load: Load) -> Plan:
        rates = [self._rates.get(branch.request_id, self.first) for branch in branches]
        lengths = [0] * len(branches)
        seconds = self.curve.seconds(len(branches), 0, load.context_tokens)
        tokens = float(len(branches))
        gains = [(-rate, at) for at, rate in enumerate(rates)]
        heapify(gains)
        for _ in range(min(load.spare_rows, self.longest * len(branches))):
            gain, at = -gains[0][0], gains[0][1]
            if lengths[at] == self.longest or gain * seconds < tokens * self.curve.per_row:
                break
            tokens, seconds = tokens + gain, seconds + self.curve.per_row
            lengths[at] += 1
            heapreplace(gains, (-(gain * rates[at]) if lengths[at] < self.longest else 0.0, at))
        return Plan(tuple(lengths), sum(lengths), template=Template.chain(self.longest))

    def plain_seconds(self, branches: int, context_tokens: int) -> float:
        return self.curve.seconds(branches, 0, context_tokens)

    def pace(self, costs: Sequence[RoundCost]) -> None:
        self.curve = CostCurve(tuple(costs))

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        if cost is not None:
            self.curve.observe(cost)
        for seen in feedback:
            tried = min(len(seen.accepted) + 1, len(seen.draft))
            rate = self._rates.pop(seen.branch.request_id, self.first)
            for guess in range(tried):
                rate += self.smoothing * ((guess < len(seen.accepted)) - rate)
            self._rates[seen.branch.request_id] = rate
        while len(self._rates) > _REMEMBERED:
            del self._rates[next(iter(self._rates))]
