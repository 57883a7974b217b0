"""The clock without noise gives the same seconds again, and those of its cost curve without drafts."""

from __future__ import annotations

import pytest

from reason.bench.drafter_setups import AT_FULL_SPEED
from reason.bench.simulated_clock import read_costs, simulate
from reason.bench.workload import BundledTarget, Workload

COSTS = read_costs([(1, 1, 30, 10.0), (1, 5, 30, 11.0), (4, 4, 120, 10.0), (4, 20, 120, 14.0)], ())


@pytest.mark.parametrize("live", [1, 4])
def test_seconds_are_those_of_the_curve_and_repeat(live: int) -> None:
    target = BundledTarget.load(device="cpu", dtype="float32")
    workload = Workload(target.make_questions(per_family=1, split="heldout")[:1], 4, 1.0, max_tokens=30)
    setup = AT_FULL_SPEED["stand"]
    plain, per_forward = simulate(target, workload, setup, COSTS, live=live, drafts=False)
    assert per_forward == 1
    # of 30 tokens the first needs no round of its own; texts may end before
    assert 0.01 * 4 // live <= plain <= 0.0105 * 30 * (4 // live)
    drafted = simulate(target, workload, setup, COSTS, live=live)
    assert drafted == simulate(target, workload, setup, COSTS, live=live)
    assert drafted[0] < 1.2 * plain
