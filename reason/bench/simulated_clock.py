"""Runs controllers as if each round took what a cost curve says: a clock without noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from decoding.round import Speculation
from decoding.speculation.controllers.throughput import ThroughputController
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from reason.bench.drafter_setups import DrafterSetup, MachineCosts
from reason.bench.speculation_run import run_workload
from reason.bench.workload import SpeculationTarget, Workload

CostRow = tuple[int, int, int, float]
"""Branches, rows, tokens of context and milliseconds of a round."""

COSTS: tuple[CostRow, ...] = (
    (1, 1, 34, 38.8), (1, 1, 162, 40.0), (1, 5, 35, 40.6), (1, 17, 35, 52.2), (4, 16, 137, 48.9), (8, 8, 273, 42.5),
    (8, 8, 1297, 43.6), (8, 32, 273, 61.0), (8, 40, 273, 68.7), (8, 136, 273, 206.8), (16, 16, 545, 47.4),
    (16, 16, 2593, 50.2), (16, 64, 545, 87.3), (32, 32, 1089, 60.6), (32, 32, 5185, 62.5), (32, 160, 1089, 222.4),
    (64, 64, 2177, 86.0), (64, 64, 10369, 92.0),
)  # fmt: skip
"""A 0.5B shape in bfloat16 on two cores with AMX, 2026-11-28."""

ROW_COUNTS = (16, 32, 64)
DRAFTING, DRAFTING_OF_BRANCH = 3e-4, 4e-5
"""Seconds for proposing and learning in a round, and more for each branch."""


@dataclass
class SimulatedClock(ThroughputController):
    """Decides by rounds that take what the curve says.

    drafts   whether there are drafts at all
    seconds  of all rounds so far
    """

    drafts: bool = True
    seconds: float = field(default=0.0, init=False)
    _is_plain: bool = field(default=True, init=False)

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        plan = super().plan_drafts(branches, load) if self.drafts else DraftPlan((0,) * len(branches), 0)
        # here: of some plain rounds the engine says nothing afterwards
        self._is_plain = not plan.max_total and not plan.collect_feedback
        if self._is_plain:
            self.seconds += self.curve.round_seconds(len(branches), 0, load.context_tokens)
        return plan

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        if cost is not None:
            count, nodes = cost.num_branches, cost.num_tokens - cost.num_branches
            seconds = self.curve.round_seconds(count, nodes, cost.context_tokens)
            if not self._is_plain:
                seconds += DRAFTING + DRAFTING_OF_BRANCH * count
                self.seconds += seconds
            cost = replace(cost, seconds=seconds)
        super().observe(feedback, cost)


def read_costs(rows: Sequence[CostRow], row_counts: Sequence[int]) -> MachineCosts:
    """Returns the costs of a machine from rows."""
    return MachineCosts(
        [RoundCost(branches, tokens, context, ms / 1e3) for branches, tokens, context, ms in rows], row_counts
    )


def simulate(
    target: SpeculationTarget,
    workload: Workload,
    setup: DrafterSetup,
    costs: MachineCosts,
    *,
    live: int,
    drafts: bool = True,
) -> tuple[float, float]:
    """Returns the seconds of the workload on that machine, and tokens per forward pass."""
    clock = SimulatedClock(drafts=drafts)
    clock.calibrate_cost(*costs)
    run = run_workload(target, workload, Speculation(setup.make_drafter(), clock, setup.rule), live=live)
    return clock.seconds, run.tokens_per_forward
