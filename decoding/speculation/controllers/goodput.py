"""SmartSpec (arXiv 2406.14066): maximises goodput with a chain per branch, whose length follows its acceptance rate.

With acceptance rate a, a chain of k commits (1 - a^(k+1)) / (1 - a) tokens in expectation. Goodput is the sum of those
over the seconds of the round. The chain with the largest gain is lengthened by one token, until goodput falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import ClassVar

from decoding.speculation.controllers.cost_curve import CostCurve
from decoding.speculation.draft import MAX_DRAFT_SIZE, TreeTemplate
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from decoding.validation import require_count, require_share

_MAX_BRANCHES = 4096  # branches with a remembered acceptance rate


@dataclass
class GoodputController:
    """Implements `Controller`.

    longest    maximum draft tokens per branch
    smoothing  weight of the newest draft token in a branch's moving acceptance rate
    first      acceptance rate of a new branch
    """

    longest: int = 16
    smoothing: float = 0.1
    first: float = 0.7
    curve: CostCurve = field(default_factory=CostCurve)
    acceptance_rates: dict[int, float] = field(init=False, default_factory=dict, repr=False)
    uses_template: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("longest", self.longest, at_most=MAX_DRAFT_SIZE)
        for name in ("smoothing", "first"):
            require_share(name, getattr(self, name), above_zero=True, below_one=True)

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        rates = [self.acceptance_rates.get(branch.request_id, self.first) for branch in branches]
        lengths = [0] * len(branches)
        seconds = self.curve.round_seconds(len(branches), 0, load.context_tokens)
        tokens = float(len(branches))
        # A min-heap of (-gain, branch): the gain of lengthening a chain by one is rate^(length + 1).
        gains = [(-rate, index) for index, rate in enumerate(rates)]
        heapify(gains)
        for _ in range(min(load.spare_tokens, self.longest * len(branches))):
            gain, index = -gains[0][0], gains[0][1]
            if lengths[index] == self.longest or gain * seconds < tokens * self.curve.seconds_per_node:
                break  # the heap gives falling gains: no other chain can raise goodput
            tokens, seconds = tokens + gain, seconds + self.curve.seconds_per_node
            lengths[index] += 1
            heapreplace(gains, (-(gain * rates[index]) if lengths[index] < self.longest else 0.0, index))
        return DraftPlan(tuple(lengths), sum(lengths), template=TreeTemplate.make_chain(self.longest))

    def calibrate_cost(self, costs: Sequence[RoundCost]) -> None:
        self.curve = CostCurve(tuple(costs))

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        if cost is not None:
            self.curve.observe(cost)
        for outcome in feedback:
            # Nodes after the first rejected one were not tried.
            num_accepted = len(outcome.accepted_nodes)
            num_tried = min(num_accepted + 1, len(outcome.draft))
            rate = self.acceptance_rates.pop(outcome.branch.request_id, self.first)
            for position in range(num_tried):
                rate += self.smoothing * ((position < num_accepted) - rate)
            # Popped and added again: the first in order is the least recently used.
            self.acceptance_rates[outcome.branch.request_id] = rate
        while len(self.acceptance_rates) > _MAX_BRANCHES:
            del self.acceptance_rates[next(iter(self.acceptance_rates))]
