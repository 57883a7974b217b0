"""The throughput controller on a simulated machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoding.speculation.controllers.cost_curve import CalibratedCost, CostCurve
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.controllers.throughput import ThroughputController
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import CostEstimate, Feedback, RoundCost
from tests.support.simulated_machine import AMPLE, Machine, branches, simulate, spare


class TestThroughput:
    def test_what_is_worth_feeding_is_the_best_of_all_numbers(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(300):
            count, reach = int(rng.integers(1, 9)), -np.sort(-(rng.random(int(rng.integers(0, 40))) ** 2))
            # along a line, or in steps of any size
            seconds = float(rng.lognormal(0, 1)) + np.cumsum([0, *rng.lognormal(-3, 2, len(reach))])
            if rng.random() < 0.5:
                seconds = np.sort(rng.choice(seconds[: 1 + len(reach) // 3], len(reach) + 1))
            price = CostEstimate(seconds, tuple(range(len(reach) + 1)))
            rates = [(count + reach[:n].sum()) / seconds[n] for n in range(len(reach) + 1)]
            best = price.count_worthwhile(reach, count)
            assert rates[best] == pytest.approx(max(rates))
            if best:  # and its nodes must not be below the floor that saves lookups
                assert reach[best - 1] >= price.min_probability(count) - 1e-9 or price.min_probability(count) == 0.9

    def test_free_rows_are_all_taken_and_dear_ones_never(self) -> None:
        reach = np.array([0.9, 0.5, 0.1, 0.001])
        for seconds in (1.0, 0.0):
            assert CostEstimate.along_line(seconds, 0.0, 4).count_worthwhile(reach, 1) == 4
        assert CostEstimate.along_line(0.01, 1.0, 4).count_worthwhile(reach, 1) == 0
        assert CostEstimate.along_line(1.0, 1.0, 4).count_worthwhile(np.empty(0), 3) == 0

    def test_rows_that_only_fill_up_are_taken(self) -> None:
        """Of 3 branches in a graph of 8 rows, 5 nodes are free, and those of the next graph must pay for all of it."""
        costs = [RoundCost(rows, rows, 0, 1e-3 * (1 if rows <= 8 else 3)) for rows in (1, 4, 8, 12, 16)]
        curve = CostCurve(tuple(costs), row_counts=(8, 16))
        reach = np.linspace(0.6, 0.3, 13)
        assert curve.estimate_cost(3, 13, 0).count_worthwhile(reach, 3) == 5
        assert curve.estimate_cost(3, 13, 0).count_worthwhile(np.full(13, 0.99), 3) == 5
        cheap = CostCurve(tuple(replace(c, seconds=1e-3 if c.num_tokens <= 8 else 1.2e-3) for c in costs), (8, 16))
        assert cheap.estimate_cost(3, 13, 0).count_worthwhile(reach, 3) == 13

    def test_it_plans_within_the_rows_there_are_at_the_price_it_has_learned(self) -> None:
        controller, machine = ThroughputController(max_draft_tokens=50), Machine()
        controller.calibrate_cost(machine.costs(40))
        assert isinstance(controller, CalibratedCost)
        while not controller.plan_drafts(branches(3), AMPLE).max_total:  # until its first trial
            controller.observe([], machine.cost(3, 0, 100))
        for rows in (0, 7, 1000):
            plan = controller.plan_drafts(branches(3), spare(rows))
            assert plan.max_total == min(rows, 50)
            assert plan.template is None
        assert plan.cost_estimate is not None
        assert plan.cost_estimate.least_seconds == pytest.approx(machine.per_row, rel=0.01)
        assert plan.cost_estimate.round_seconds == pytest.approx(machine.seconds(3, 0, 100), rel=0.01)

    def test_rounds_that_filled_prompts_are_not_counted(self) -> None:
        controller = ThroughputController()
        before = controller.curve.round_seconds(3, 0, 100)
        for _ in range(40):
            controller.observe([], None)
        assert controller.curve.round_seconds(3, 0, 100) == before > 0


def test_a_resting_controller_lets_the_drafter_learn_now_and_then() -> None:
    controller = ThroughputController()
    controller.calibrate_cost(Machine().costs(40))
    plans = []
    for _ in range(1000):
        plan = controller.plan_drafts(branches(3), AMPLE)
        plans.append(plan)
        factor = 3.0 if plan.max_total else 1.2 if plan.collect_feedback else 1.0
        seconds = factor * controller.curve.round_seconds(3, 0, 100)
        controller.observe([Feedback(one, Draft(), ()) for one in branches(3)], RoundCost(3, 3, 100, seconds))
    learned = sum(plan.collect_feedback for plan in plans if not plan.max_total)
    # a fifth of a round each, of which 0.8 % of the time may be spent
    assert 25 <= learned <= 50
    assert sum(plan.max_total > 0 for plan in plans) < 20


def test_no_drafts_may_be_asked_for() -> None:
    controller = ThroughputController(max_draft_tokens=0)
    for _ in range(100):
        assert controller.plan_drafts(branches(3), AMPLE).max_total == 0
        controller.observe([], RoundCost(3, 3, 100, 0.02))


@pytest.mark.parametrize(("row_share", "count"), [(0.001, 1), (0.02, 4), (0.1, 2), (0.1, 6), (1.0, 4)])
def test_on_a_machine_throughput_is_as_good_as_the_best_number_and_as_no_drafts(row_share: float, count: int) -> None:
    """From rows that are nearly free to rows that cost as much as a round."""
    machine = Machine(base=1.0, per_branch=0.01, per_row=row_share, per_context=1e-6, noise=0.05)
    throughput = ThroughputController()
    throughput.calibrate_cost([machine.cost(b, n, 100) for b in (1, 8) for n in (0, 4, 16) for _ in range(3)])
    got = simulate(throughput, machine, count)
    fixed = {n: simulate(FixedController(n), machine, count) for n in (0, 1, 2, 4, 8)}
    assert got > 0.95 * max(fixed.values())  # trials cannot tell a gain of a few percent from luck
    assert got > 0.98 * fixed[0]
