"""The cost curve fits measured rounds, and the warm-up profile measures them."""

from __future__ import annotations

import asyncio
import threading
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from decoding.speculation.controllers.cost_curve import CostCurve, solve_nonnegative
from decoding.speculation.interfaces import RoundCost
from decoding.warmup_profile import profile_rounds
from tests.support.engines import mixed_requests, open_engine
from tests.support.fakes import HashBackend
from tests.support.simulated_machine import Machine

GRID = list(product((1, 4, 32), (0, 20, 150), (100, 10_000)))


def worst(curve: CostCurve, machine: Machine) -> float:
    """The largest relative error over rounds of all sizes."""
    return max(abs(curve.round_seconds(*size) / machine.seconds(*size) - 1) for size in GRID)


@given(seed=st.integers(0, 10**6), rows=st.integers(1, 30), shift=st.sampled_from([-2.0, 0.0, 0.5]))
def test_nonnegative_least_squares_are_as_good_as_those_of_scipy(seed: int, rows: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    matrix, values = rng.standard_normal((rows, 4)) + shift, rng.standard_normal(rows)
    ours = solve_nonnegative(matrix, values)
    _, best = nnls(matrix, values)
    assert (ours >= 0).all()
    assert np.linalg.norm(matrix @ ours - values) == pytest.approx(best, abs=1e-9)


@given(seed=st.integers(0, 10**6), times=st.sampled_from([0.01, 1.0, 100.0]))
def test_column_that_is_a_multiple_of_an_earlier_one_gets_nothing(seed: int, times: float) -> None:
    """As the context where all rounds had the same: shared with the base, longer contexts would seem too expensive."""
    rng = np.random.default_rng(seed)
    matrix = rng.random((12, 4))
    matrix[:, 3] = times * matrix[:, 0]
    assert solve_nonnegative(matrix, rng.random(12))[3] == 0


class TestCostCurve:
    def test_tiles_of_rows_are_known_at_their_counts_and_beyond_the_largest(self) -> None:
        """Rounds whose products take tiles of 16 rows: the tile counts up to the largest, then every row."""

        def seconds(rows: int) -> float:
            return 1e-3 * (-(-rows // 16) if rows <= 64 else rows / 16)

        costs = [RoundCost(rows, rows, 0, seconds(rows)) for rows in (1, 8, 16, 32, 64, 136, 160)]
        costs += [RoundCost(rows // 4, rows, 0, seconds(rows)) for rows in (16, 32, 64, 136)]
        curve = CostCurve(tuple(costs), row_counts=(16, 32, 64))
        for branches, nodes in ((1, 0), (4, 12), (4, 13), (16, 16), (64, 0), (32, 96), (160, 0)):
            expected = curve.round_seconds(branches, nodes, 0)
            assert expected == pytest.approx(seconds(branches + nodes), rel=0.02)
            assert curve.estimate_cost(branches, nodes, 0).seconds_N[nodes] == pytest.approx(expected)

    def test_estimate_is_that_of_single_rounds_whatever_was_asked_before(self) -> None:
        costs = [
            RoundCost(rows, rows, 100 * rows, 1e-3 * (-(-rows // 16)) + 1e-5 * rows) for rows in (1, 8, 16, 32, 64)
        ]
        costs += [RoundCost(2, rows, 900, 1e-3 * (-(-rows // 16)) + 2e-5 * rows) for rows in (16, 32, 64, 100)]
        curve = CostCurve(tuple(costs), row_counts=(16, 32, 64))
        for cost, (branches, most) in product(costs, [(1, 40), (2, 90), (2, 15), (70, 4)]):
            curve.observe(cost)
            estimate = curve.estimate_cost(branches, most, 300, plain_factor=1.5)
            one_by_one = [1.5 * curve.round_seconds(branches, nodes, 300) for nodes in range(most + 1)]
            np.testing.assert_allclose(estimate.seconds_N, one_by_one)
            steeper = curve.estimate_cost(branches, most, 300, plain_factor=1.5, node_factor=2.0).seconds_N
            np.testing.assert_allclose(steeper - steeper[0], 2 * (estimate.seconds_N - one_by_one[0]), atol=1e-12)
            assert estimate.corners == (*(c - branches for c in (16, 32, 64) if 0 < c - branches < most), most)

    def test_until_something_was_measured_a_round_has_some_price(self) -> None:
        curve = CostCurve()
        assert curve.seconds_per_node > 0
        assert (
            curve.round_seconds(1, 0, 100)
            < curve.round_seconds(4, 0, 100)
            < curve.round_seconds(4, 10, 100)
            < curve.round_seconds(4, 10, 900)
        )

    @pytest.mark.parametrize(
        ("machine", "error"),
        [
            (Machine(), 0.01),
            (Machine(noise=0.1), 0.08),
            (Machine(per_row=0.0), 0.07),
            (Machine(base=1e-4, per_branch=0, per_row=1e-5, per_context=1e-9), 0.01),
        ],
        ids=["exact", "noisy", "rows are free", "fast"],
    )
    def test_it_recovers_a_linear_machine(self, machine: Machine, error: float) -> None:
        curve = CostCurve(tuple(machine.costs(100)))
        for cost in machine.costs(1000):
            curve.observe(cost)
        assert worst(curve, machine) < error
        assert curve.seconds_per_node == pytest.approx(machine.per_row, rel=0.15, abs=1e-3 * machine.base)

    @pytest.mark.parametrize(("plain", "rows"), [(1.0, 3.0), (1.5, 1.0), (0.7, 2.0), (5.0, 5.0)])
    def test_rounds_refine_what_was_measured_at_the_start(self, plain: float, rows: float) -> None:
        """The start measured without drafting, and perhaps while the machine was busy."""
        start = Machine(noise=0.05)
        real = Machine(0.02 * plain, 4e-4 * plain, 2e-4 * rows, 1e-6 * plain, noise=0.05)
        curve = CostCurve(tuple(start.costs(50)))
        for cost in real.costs(1500):
            curve.observe(cost)
        assert worst(curve, real) < 0.12
        assert curve.seconds_per_node == pytest.approx(real.per_row, rel=0.15)

    def test_it_ignores_rounds_that_another_process_slowed_down(self) -> None:
        calm, machine = Machine(noise=0.05), Machine(noise=0.05, hiccup=30.0)
        curve = CostCurve(tuple(calm.costs(50)))
        for cost in machine.costs(1500):
            curve.observe(cost)
        assert worst(curve, machine) < 0.06

    def test_it_starts_from_what_was_measured(self) -> None:
        machine = Machine(noise=0.02)
        curve = CostCurve(tuple(machine.costs(30)))
        assert worst(curve, machine) < 0.1

    def test_rounds_that_are_all_alike_do_not_undo_what_was_measured(self) -> None:
        """One size says nothing of what a row costs."""
        machine = Machine(noise=0.02)
        curve = CostCurve(tuple(machine.costs(30)))
        for _ in range(2000):
            curve.observe(machine.cost(16, 40, 5000))
        assert curve.round_seconds(16, 40, 5000) == pytest.approx(machine.seconds(16, 40, 5000), rel=0.03)
        assert curve.seconds_per_node == pytest.approx(machine.per_row, rel=0.5)

    @pytest.mark.parametrize("slower", [0.3, 2.0, 10.0])
    def test_a_machine_that_is_slower_from_now_on_is_learned(self, slower: float) -> None:
        machine = Machine()
        curve = CostCurve(tuple(machine.costs(30)))
        slow = Machine(machine.base * slower, machine.per_branch * slower, machine.per_row * slower, 1e-6 * slower)
        for cost in slow.costs(2000):
            curve.observe(cost)
        assert worst(curve, slow) < 0.1

    def test_nothing_is_ever_negative(self) -> None:
        rng = np.random.default_rng(4)
        for _ in range(30):
            curve = CostCurve()
            for seconds in rng.lognormal(-5, 2, size=64):
                count = int(rng.integers(1, 9))
                curve.observe(RoundCost(count, count + int(rng.integers(0, 30)), int(rng.integers(0, 999)), seconds))
            assert curve.seconds_per_node >= 0
            assert min(curve.round_seconds(*size) for size in GRID) >= 0
            assert np.isfinite(curve.round_seconds(4, 4, 4))

    def test_rounds_without_drafts_leave_the_price_of_a_row_at_what_was_measured(self) -> None:
        machine = Machine()
        curve = CostCurve(tuple(machine.costs(30)))
        for _ in range(1000):
            curve.observe(machine.cost(8, 0, 800))
        assert curve.seconds_per_node == pytest.approx(machine.per_row, rel=0.2)


class TestWarmupProfile:
    def test_it_measures_rounds_of_several_sizes(self) -> None:
        costs = profile_rounds(HashBackend())
        sizes = {(cost.num_branches, cost.num_tokens) for cost in costs}
        assert {count for count, _ in sizes} == {1, 8, 32}
        assert {rows / count for count, rows in sizes} == {1, 5, 17}
        assert all(cost.seconds > 0 and cost.context_tokens > 32 * cost.num_branches for cost in costs)
        assert CostCurve(tuple(costs)).round_seconds(8, 8, 500) > 0

    def test_it_leaves_nothing_behind(self) -> None:
        backend, before = HashBackend(), set(threading.enumerate())
        profile_rounds(backend)
        assert set(threading.enumerate()) <= before
        requests = mixed_requests(6)
        with open_engine(backend) as rehearsed, open_engine(HashBackend()) as fresh:
            after, expected = (asyncio.run(engine.generate(requests)) for engine in (rehearsed, fresh))
            assert rehearsed.stats.prompt_tokens == fresh.stats.prompt_tokens
        assert [g.tokens for g in after] == [g.tokens for g in expected]

    def test_a_small_vocabulary_is_no_obstacle(self) -> None:
        assert profile_rounds(HashBackend(vocab_size=3))

    def test_a_model_that_breaks_says_so(self) -> None:
        """Without costs of a warm-up profile there is nothing to fit."""
        backend = HashBackend()
        backend.fail_at = 2
        with pytest.raises(RuntimeError, match="the toy broke"):
            profile_rounds(backend)


def test_drafting_is_a_part_of_all_rounds_but_not_of_the_plain_one() -> None:
    curve = CostCurve()
    without, with_drafting = curve.estimate_cost(4, 20, 300), curve.estimate_cost(4, 20, 300, drafting=0.5)
    assert with_drafting.seconds_N == pytest.approx(without.seconds_N + 0.5 * without.seconds_N[0])
    assert with_drafting.round_seconds == pytest.approx(without.round_seconds)
    # when nodes are chosen it is spent, so that less probable ones pay
    assert 1.5 * with_drafting.min_probability(4) == pytest.approx(without.min_probability(4))
