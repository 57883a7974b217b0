"""SpecMemo (arXiv 2506.01986): drafts no more than a budget of bytes holds, and the fewest nodes that keep the speed.

Other controllers decide within it: the nodes that fit the budget are all that they may give away. Where a controller
leaves the number of nodes to their estimated rate of tokens per second, as `ThroughputController` does, the round gets
the fewest nodes that keep `keep_gain` of what the best number gains over plain decoding: the last nodes of a draft add
little, and each holds as much memory as the first. A share of the rate itself would be no drafts at all where they gain
little, as in the first rounds of a problem, and a drafter that is not asked shows no gain.

Nothing is allocated per node: the engine's KV pool is one tensor, whose slots rejected nodes give back, and work arrays
are those of `decoding.model.workspace` where a GPU computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from decoding.speculation.controllers.cost_curve import CalibratedCost
from decoding.speculation.controllers.draft_memory import DraftMemory
from decoding.speculation.controllers.seconds_saved import find_seconds_saved
from decoding.speculation.interfaces import BatchLoad, Branch, Controller, DraftPlan, Feedback, RoundCost
from decoding.validation import require_positive, require_share


@dataclass
class MemoryController:
    """Implements `Controller` with another one.

    controller     decides within the budget
    max_draft_mib  maximum MiB of a round's draft nodes, as `DraftMemory` counts them; None for no limit
    keep_gain      share of the best estimated gain in tokens per second that the fewest nodes must reach; 1: the best
    """

    controller: Controller
    max_draft_mib: float | None = None
    keep_gain: float = 0.95
    peak_draft_bytes: int = field(init=False, default=0)
    """The most that the draft nodes of a round have held."""
    _memory: DraftMemory | None = field(init=False, default=None, repr=False)
    _context: int = field(init=False, default=0, repr=False)

    def __post_init__(self) -> None:
        if self.max_draft_mib is not None:
            require_positive("max_draft_mib", self.max_draft_mib)
        require_share("keep_gain", self.keep_gain, above_zero=True)

    @property
    def uses_template(self) -> bool:
        return self.controller.uses_template

    @property
    def seconds_saved(self) -> float | None:
        return find_seconds_saved(self.controller)

    def set_memory(self, memory: DraftMemory) -> None:
        self._memory = memory

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        assert self._memory is not None, "an engine gives the sizes of its model before the first round"
        # of the longest branch: its rows of the mask are the widest
        self._context = max((len(branch.tokens) for branch in branches), default=0)
        if self.max_draft_mib is not None:
            fitting = self._memory.count_nodes(int(self.max_draft_mib * 2**20), self._context)
            load = replace(load, spare_tokens=min(load.spare_tokens, fitting))
        plan = self.controller.plan_drafts(branches, load)
        if plan.cost_estimate is None:
            return plan
        return replace(plan, cost_estimate=replace(plan.cost_estimate, keep_gain=self.keep_gain))

    def calibrate_cost(self, costs: Sequence[RoundCost], row_counts: Sequence[int] = ()) -> None:
        if isinstance(self.controller, CalibratedCost):
            self.controller.calibrate_cost(costs, row_counts)

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        assert self._memory is not None
        nodes = sum(len(outcome.draft) for outcome in feedback)
        self.peak_draft_bytes = max(self.peak_draft_bytes, self._memory.round_bytes(nodes, self._context))
        self.controller.observe(feedback, cost)
