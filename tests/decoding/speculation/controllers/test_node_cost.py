"""Costs of drafting and of draft nodes, from the rounds that drafted."""

from __future__ import annotations

import random

import pytest

from decoding.speculation.controllers.node_cost import NodeCost


@pytest.mark.parametrize("most", [4, 40])
@pytest.mark.parametrize(("factor", "drafting"), [(1.0, 0.0), (1.4, 0.8), (0.6, 0.3), (2.0, 1.5)])
def test_both_costs_are_found_whatever_the_size_of_rounds(most: int, factor: float, drafting: float) -> None:
    cost, rng, per_node = NodeCost(), random.Random(1), 0.17
    for _ in range(300):
        plain = rng.uniform(2e-4, 4e-4)
        nodes = rng.randint(1, most) * per_node * plain
        cost.observe(plain * (1 + drafting) + factor * nodes, plain, nodes)
    # drawn to 1 by a few rounds
    assert cost.factor == pytest.approx(factor, rel=0.2)
    usual = most / 2 * per_node
    assert 1 + cost.drafting + cost.factor * usual == pytest.approx(1 + drafting + factor * usual, rel=0.05)


def test_a_disturbed_round_says_little() -> None:
    cost = NodeCost()
    cost.observe(1.0, 1e-3, 1e-3)
    assert (cost.factor, cost.drafting) == pytest.approx((1.0, 0.0), abs=0.05)
