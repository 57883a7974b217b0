"""When a gate tries drafts for the first time: what other batch sizes have waited counts, and what nodes cost."""

from __future__ import annotations

import pytest

from decoding.speculation.controllers.speculation_gate import SpeculationGate

PLAIN = 1e-3
CHEAP, DEAR = 0.05 * PLAIN, 0.5 * PLAIN
"""Seconds of a draft node of each branch, next to a plain round."""


def count_rounds_until_trial(gate: SpeculationGate, branches: int, node_seconds: float, most: int = 1000) -> int:
    """Runs rounds until the first drafted one, at most so many; returns how many there were before it."""
    for number in range(most):
        kind = gate.plan_round(branches, PLAIN, node_seconds)
        if kind == "drafted":
            return number
        gate.observe(kind, branches, branches, PLAIN, PLAIN)
    return most


def trusting_gate() -> SpeculationGate:
    gate = SpeculationGate()
    gate.trust_drafter()
    return gate


@pytest.mark.parametrize("rounds_of_one", [0, 2, 3])
def test_a_trained_drafter_waits_where_many_branches_have_dear_nodes(rounds_of_one: int) -> None:
    """Whatever sizes came before: a trial of many branches costs much, and drafts win little there."""
    gate = trusting_gate()
    assert count_rounds_until_trial(gate, 1, CHEAP, most=rounds_of_one) == rounds_of_one
    assert 100 < count_rounds_until_trial(gate, 32, DEAR) < 200


@pytest.mark.parametrize(("branches", "node_seconds"), [(64, CHEAP), (16, DEAR)])
def test_a_trained_drafter_is_tried_at_once_where_it_is_likely_to_pay(branches: int, node_seconds: float) -> None:
    soon = count_rounds_until_trial(trusting_gate(), branches, node_seconds)
    assert soon <= 10 < count_rounds_until_trial(SpeculationGate(), branches, node_seconds)


def test_few_branches_do_not_wait_as_long_as_many_with_dear_nodes() -> None:
    gate = trusting_gate()
    assert count_rounds_until_trial(gate, 32, DEAR, most=20) == 20
    assert count_rounds_until_trial(gate, 2, DEAR) < 5


def test_what_another_size_has_waited_counts() -> None:
    alone, after = SpeculationGate(), SpeculationGate()
    waited = 20
    assert count_rounds_until_trial(after, 2, CHEAP, most=waited) == waited
    assert count_rounds_until_trial(after, 4, CHEAP) == count_rounds_until_trial(alone, 4, CHEAP) - waited


def test_trials_are_counted() -> None:
    gate = trusting_gate()
    for number in range(3):
        assert gate.num_trials == number
        count_rounds_until_trial(gate, 1, CHEAP)
        while gate.plan_round(1, PLAIN, CHEAP) == "drafted":  # until the stake is lost
            gate.observe("drafted", 1, 1, 2 * PLAIN, PLAIN)
