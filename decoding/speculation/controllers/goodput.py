"""SmartSpec (arXiv 2406.14066): maximises goodput with a chain per branch, whose length follows its acceptance rate.

With acceptance rate a, a chain of k commits (1 - a^(k+1)) / (1 - a) tokens in expectation. Goodput is the sum of those
over the seconds of the round. The chain with the largest gain is lengthened by one token, as often as makes it largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import ClassVar

import numpy as np

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
        most = min(load.spare_tokens, self.longest * len(branches))
        order, gains = self._order_gains(rates, most)
        estimate = self.curve.estimate_cost(len(branches), most, load.context_tokens)
        chosen = order[: estimate.count_worthwhile(np.array(gains), len(branches))]
        lengths = np.bincount(chosen, minlength=len(branches)).tolist()
        return DraftPlan(tuple(lengths), len(chosen), template=TreeTemplate.make_chain(self.longest))

    def _order_gains(self, rates: Sequence[float], most: int) -> tuple[list[int], list[float]]:
        """Returns which chain to lengthen first, second, ..., `most` times, and the tokens that each adds."""
        # A min-heap of (-gain, branch): the gain of lengthening a chain by one is rate^(length + 1).
        heap = [(-rate, index) for index, rate in enumerate(rates)]
        heapify(heap)
        order, gains, lengths = list[int](), list[float](), [0] * len(rates)
        while len(order) < most:
            gain, index = -heap[0][0], heap[0][1]
            order.append(index)
            gains.append(gain)
            lengths[index] += 1
            heapreplace(heap, (-(gain * rates[index]) if lengths[index] < self.longest else 0.0, index))
        return order, gains

    def calibrate_cost(self, costs: Sequence[RoundCost], row_counts: Sequence[int] = ()) -> None:
        self.curve = CostCurve(tuple(costs), tuple(row_counts))

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
