"""Run a controller on texts of the bundled model as if each round took what the cost curve of another machine says.

    python scripts/dev/simulate_controller.py --drafters stand,hybrid --live 4,16
    python scripts/dev/simulate_controller.py --costs FILE.json    # [[branches, rows, tokens of context, ms], ...]

Drafts, accepted tokens and decisions are real, and the clock has no noise: two versions of a controller can be compared
in seconds where `reason bench puppet` takes minutes. One decision changes all that follow, so a few percent mean
something over several problems of each family only. A cost curve that is wrong it does not show. Prints tokens per
second over those of plain rounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from decoding.round import Speculation
from decoding.speculation.controllers.throughput import ThroughputController
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from reason.bench.arguments import name_list, positive_int, positive_ints, require_names
from reason.bench.drafter_setups import AT_FULL_SPEED, DrafterSetup
from reason.bench.speculation_run import run_workload
from reason.bench.workload import BundledTarget, Workload

COSTS = (
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafters", type=name_list, default=("stand", "suffix", "hybrid"))
    parser.add_argument("--live", type=positive_ints, default=(1, 4, 16, 64))
    parser.add_argument("--problems", type=positive_int, default=1, help="of each family")
    parser.add_argument("--trajectories", type=positive_int, default=16, help="of each problem")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--costs", type=Path, help="rounds of another machine; see above")
    parser.add_argument("--row-counts", type=positive_ints, default=ROW_COUNTS, help="rows that fill tiles there")
    args = parser.parse_args()
    require_names("--drafters", args.drafters, AT_FULL_SPEED)
    rows = json.loads(args.costs.read_text(encoding="utf-8")) if args.costs else COSTS
    costs = [RoundCost(branches, tokens, context, ms / 1e3) for branches, tokens, context, ms in rows]
    target = BundledTarget.load(device="cpu", dtype="float32")
    questions = target.make_questions(per_family=args.problems, split="heldout")
    workload = Workload(questions, args.trajectories, args.temperature, target.max_tokens)

    def measure(setup: DrafterSetup, live: int, *, drafts: bool) -> tuple[float, float]:
        clock = SimulatedClock(drafts=drafts)
        clock.calibrate_cost(costs, args.row_counts)
        run = run_workload(target, workload, Speculation(setup.make_drafter(), clock, setup.rule), live=live)
        return clock.seconds, run.tokens_per_forward

    for live in args.live:
        plain, _ = measure(AT_FULL_SPEED[args.drafters[0]], live, drafts=False)
        for name in args.drafters:
            seconds, per_forward = measure(AT_FULL_SPEED[name], live, drafts=True)
            print(f"{live:4d} live  {name:<18} {plain / seconds:5.2f}x  {per_forward:5.2f} tokens/forward", flush=True)


if __name__ == "__main__":
    main()
