"""The goodput controller makes chains longer and trees larger while that pays."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import product

import numpy as np
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
            controller.acceptance_rates.update((i, np.array([rate])) for i, rate in enumerate(rates))
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
            assert controller.acceptance_rates[at].tolist() == pytest.approx([rate], abs=0.15)
        controller.calibrate_cost(Machine(per_row=2e-3).costs(50))
        lengths = controller.plan_drafts(branches(3), AMPLE).max_nodes
        assert lengths[0] > lengths[1] >= lengths[2]

    def test_a_branch_without_a_draft_teaches_nothing(self) -> None:
        controller = GoodputController()
        controller.observe([Feedback(one, Draft(), ()) for one in branches(2)], None)
        assert {at: rates.tolist() for at, rates in controller.acceptance_rates.items()} == {0: [0.7], 1: [0.7]}

    def test_branches_of_long_ago_are_forgotten(self) -> None:
        controller = GoodputController()
        for at in range(5000):
            one = Branch(at, "", (1,), 1, SamplingParams(), 9)
            controller.observe([Feedback(one, Draft((1,), (-1,)), (0,))], None)
        assert len(controller.acceptance_rates) <= 4096
        assert 4999 in controller.acceptance_rates

    def test_a_branch_that_rests_is_tried_again_and_drafts_once_its_tokens_are_accepted(self) -> None:
        """Rows cost something: a branch whose rate is near 0 gets none, until a trial."""
        controller = GoodputController(trial=10)
        controller.calibrate_cost(Machine(per_row=2e-3).costs(50))
        (one,) = branches(1)
        controller.acceptance_rates[0] = np.array([0.01])
        sizes = []
        for _ in range(200):
            (size,) = controller.plan_drafts([one], AMPLE).max_nodes
            sizes.append(size)
            draft = Draft(tuple(range(size)), tuple(range(-1, size - 1)))
            controller.observe([Feedback(one, draft, tuple(range(size)))], None)  # all are accepted
        assert sizes[:11] == [0] * 10 + [4]
        assert min(sizes[-50:]) > 4

    def test_trials_of_hopeless_branches_are_rare_and_fit(self) -> None:
        controller, live = GoodputController(trial=10), branches(3)
        controller.calibrate_cost(Machine(per_row=2e-3).costs(50))
        controller.acceptance_rates.update((i, np.array([0.01])) for i in range(3))
        totals = []
        for _ in range(110):
            plan = controller.plan_drafts(live, spare(6))
            assert plan.max_total == sum(plan.max_nodes) <= 6
            totals.append(plan.max_total)
            chains = [Draft(tuple(range(size)), tuple(range(-1, size - 1))) for size in plan.max_nodes]
            controller.observe([Feedback(one, draft, ()) for one, draft in zip(live, chains, strict=True)], None)
        assert 0 < sum(total > 0 for total in totals) <= 25
        assert not any(
            GoodputController(trial=0, curve=controller.curve, first=0.01).plan_drafts(live, AMPLE).max_total
            for _ in range(100)
        )

    def test_trees_have_siblings_where_those_are_accepted(self) -> None:
        """The second child of a node is accepted as often as the first; the third never."""
        controller, rng = GoodputController(longest=6, width=3), random.Random(0)
        (one,) = branches(1)
        for _ in range(300):
            plan = controller.plan_drafts([one], AMPLE)
            (template,) = plan.own_templates
            draft = Draft(template.ranks, template.parents)
            parents = template.parents
            accepted, node = list[int](), -1
            while True:
                rank = rng.choice([0, 1])
                below = [i for i, parent in enumerate(parents) if parent == node and draft.tokens[i] == rank]
                if not below:
                    break
                accepted += below
                node = below[0]
            controller.observe([Feedback(one, draft, tuple(accepted))], None)
        rates = controller.acceptance_rates[0]
        assert rates[:2] == pytest.approx([0.5, 0.5], abs=0.25)
        assert rates[2] < 0.1
        assert template.ranks.count(1) >= 2
        assert template.ranks.count(2) <= 1, "a trial at most"

    @pytest.mark.parametrize("per_row", [1e-5, 3e-3, 8e-3, 0.1])
    @pytest.mark.parametrize("rows", [1000, 4])
    def test_its_trees_are_the_best_of_all(self, per_row: float, rows: int) -> None:
        """Of every tree of up to three nodes in each of two branches, which share the round's cost."""
        curve = CostCurve(tuple(Machine(per_row=per_row).costs(50)))
        rng, every, chosen = random.Random(1), every_tree(nodes=3, width=2), set()
        for _ in range(8):
            controller = GoodputController(longest=3, width=2, trial=0, curve=curve)
            rates = [sorted((rng.uniform(0.02, 0.98) for _ in range(2)), reverse=True) for _ in range(2)]
            controller.acceptance_rates.update((i, np.array(pair)) for i, pair in enumerate(rates))
            plan = controller.plan_drafts(branches(2), spare(rows))
            assert plan.max_nodes == tuple(map(len, plan.own_templates))
            assert plan.max_total == sum(plan.max_nodes) <= rows

            def goodput(trees: Sequence[Tree], rates: Sequence[Sequence[float]] = rates) -> float:
                tokens = 2 + sum(
                    sum(math.prod(branch_rates[rank] for rank in path) for path in tree)
                    for tree, branch_rates in zip(trees, rates, strict=True)
                )
                return tokens / curve.round_seconds(2, sum(map(len, trees)), spare(rows).context_tokens)

            trees = [paths_of(template) for template in plan.own_templates]
            chosen.add(tuple(trees))
            best = max(goodput(pair) for pair in product(every, repeat=2) if sum(map(len, pair)) <= rows)
            assert goodput(trees) == pytest.approx(best)
        assert len(chosen) > 1 or per_row == 0.1

    def test_each_branch_has_the_tree_of_its_own_rates(self) -> None:
        controller = GoodputController(longest=6, width=2)
        controller.acceptance_rates.update({0: np.array([0.95, 0.01]), 1: np.array([0.5, 0.45])})
        sure, unsure = controller.plan_drafts(branches(2), AMPLE).own_templates
        assert sure == TreeTemplate.make_chain(6)
        assert unsure.parents.count(-1) == 2

    @pytest.mark.parametrize(("start", "accepted_ranks"), [((0.02, 0.01), (0,)), ((0.5, 0.01), (0, 1))])
    def test_trees_return_from_zero(self, start: tuple[float, float], accepted_ranks: tuple[int, ...]) -> None:
        """Children of a rank are not drafted, until a trial shows that they are accepted."""
        controller, rng = GoodputController(width=2, trial=10), random.Random(0)
        controller.calibrate_cost(Machine(per_row=2e-3).costs(50))
        (one,), resting = branches(1), accepted_ranks[-1]
        controller.acceptance_rates[0] = np.array(start)
        counts = []
        for _ in range(300):
            (template,) = controller.plan_drafts([one], AMPLE).own_templates
            counts.append(template.ranks.count(resting))
            draft, accepted, node = Draft(tuple(range(len(template))), template.parents), list[int](), -1
            while (child := find_child(template, node, rng.choice(accepted_ranks))) is not None:
                accepted.append(child)
                node = child
            controller.observe([Feedback(one, draft, tuple(accepted))], None)
        assert counts[:10] == [0] * 10
        assert counts[10] > 0
        assert sum(count > 0 for count in counts[-50:]) > 40

    def test_a_full_chain_makes_room_for_a_second_child_now_and_then(self) -> None:
        controller, (one,) = GoodputController(longest=5, width=2, trial=3), branches(1)
        controller.acceptance_rates[0] = np.array([0.99, 0.001])
        templates = [controller.plan_drafts([one], AMPLE).own_templates[0] for _ in range(12)]
        assert all(len(template) == 5 for template in templates)
        assert [template.ranks.count(1) for template in templates] == [0, 0, 0, 1] * 3


Tree = frozenset[tuple[int, ...]]


def every_tree(nodes: int, width: int) -> set[Tree]:
    """All trees of at most `nodes` nodes, each as the paths of ranks to them; no node without its elder sibling."""
    trees: set[Tree] = {frozenset()}
    for _ in range(nodes):
        trees |= {
            tree | {(*path, rank)}
            for tree in trees
            if len(tree) < nodes
            for path in (*tree, ())
            for rank in range(width)
            if (*path, rank) not in tree and (rank == 0 or (*path, rank - 1) in tree)
        }
    return trees


def paths_of(template: TreeTemplate) -> Tree:
    paths: list[tuple[int, ...]] = []
    for parent, rank in zip(template.parents, template.ranks, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    return frozenset(paths)


def find_child(template: TreeTemplate, node: int, rank: int) -> int | None:
    edges = list(zip(template.parents, template.ranks, strict=True))
    return edges.index((node, rank)) if (node, rank) in edges else None
