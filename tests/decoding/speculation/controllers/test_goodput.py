"""The goodput controller lengthens chains while that pays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest

from decoding.core import SamplingParams
from decoding.speculation.controllers.cost_curve import CostCurve
from decoding.speculation.controllers.goodput import GoodputController
from decoding.speculation.draft import Draft, TreeTemplate
from decoding.speculation.interfaces import BatchLoad, Branch, Feedback
from tests.support.simulated_machine import AMPLE, Machine, branches, spare


class TestGoodput:
    @staticmethod
    def value(lengths: Sequence[int], rates: Sequence[float], curve: CostCurve, load: BatchLoad) -> float:
        tokens = sum((1 - rate ** (k + 1)) / (1 - rate) for k, rate in zip(lengths, rates, strict=True))
        return tokens / curve.round_seconds(len(lengths), sum(lengths), load.context_tokens)

    @pytest.mark.parametrize("per_row", [1e-5, 1e-3, 4e-3, 8e-3, 0.1])
    @pytest.mark.parametrize("rows", [1000, 5])
    def test_its_lengths_are_the_best_of_all(self, per_row: float, rows: int) -> None:
        curve = CostCurve(tuple(Machine(per_row=per_row).costs(50)))
        rng = random.Random(0)
        for _ in range(12):
            controller, rates = GoodputController(longest=4, curve=curve), [rng.uniform(0.02, 0.98) for _ in range(3)]
            controller.acceptance_rates.update(enumerate(rates))
            plan = controller.plan_drafts(branches(3), spare(rows))
            assert plan.max_total == sum(plan.max_nodes) <= rows
            assert plan.template == TreeTemplate.make_chain(4)
            every = [lengths for lengths in product(range(5), repeat=3) if sum(lengths) <= rows]
            best = max(self.value(lengths, rates, curve, spare(rows)) for lengths in every)
            assert self.value(plan.max_nodes, rates, curve, spare(rows)) == pytest.approx(best)

    def test_free_rows_make_the_longest_chains_and_dear_ones_none(self) -> None:
        assert GoodputController(longest=4).plan_drafts(branches(3), AMPLE).max_nodes == (4, 4, 4)
        dear = CostCurve(tuple(Machine(base=1e-4, per_branch=0, per_row=1.0).costs(50)))
        assert GoodputController(curve=dear).plan_drafts(branches(3), AMPLE).max_total == 0

    def test_rates_are_learned_branch_by_branch(self) -> None:
        controller, rng = GoodputController(smoothing=0.05), random.Random(0)
        true = [0.95, 0.5, 0.1]
        draft = Draft((1, 2, 3, 4), (-1, 0, 1, 2))
        for _ in range(300):
            feedback = []
            for one, rate in zip(branches(3), true, strict=True):
                num_accepted = next((k for k in range(4) if rng.random() > rate), 4)
                feedback.append(Feedback(one, draft, tuple(range(num_accepted))))
            controller.observe(feedback, None)
        for at, rate in enumerate(true):
            assert controller.acceptance_rates[at] == pytest.approx(rate, abs=0.15)
        controller.calibrate_cost(Machine(per_row=2e-3).costs(50))
        lengths = controller.plan_drafts(branches(3), AMPLE).max_nodes
        assert lengths[0] > lengths[1] >= lengths[2]

    def test_a_branch_without_a_draft_teaches_nothing(self) -> None:
        controller = GoodputController()
        controller.observe([Feedback(one, Draft(), ()) for one in branches(2)], None)
        assert controller.acceptance_rates == {0: 0.7, 1: 0.7}

    def test_branches_of_long_ago_are_forgotten(self) -> None:
        controller = GoodputController()
        for at in range(5000):
            one = Branch(at, "", (1,), 1, SamplingParams(), 9)
            controller.observe([Feedback(one, Draft((1,), (-1,)), (0,))], None)
        assert len(controller.acceptance_rates) <= 4096
        assert 4999 in controller.acceptance_rates
