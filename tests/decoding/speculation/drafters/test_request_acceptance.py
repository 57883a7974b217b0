"""Requests differ in how often their drafts are accepted, and the estimates follow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoding.speculation.draft import Draft
from decoding.speculation.drafters import request_acceptance
from decoding.speculation.drafters.request_acceptance import RequestAcceptance, move_offsets
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback
from tests.support.draft_sources import FakeSource, branch

LEVELS = 16
TOKENS = 3  # that a text grows by in a round


def request(number: int, length: int = 100) -> Branch:
    return branch((1,) * length, seed=number)


def shift(p: float, logits: float) -> float:
    odds = np.exp(logits) * p / (1 - p)
    return float(odds / (1 + odds))


class RequestSimulation:
    """Requests that differ by `offsets[request][level]`, in logits, from what is expected of all, which is right.

    expected, accepted  sums by request, of the second half of the rounds
    """

    def __init__(self, offsets: np.ndarray, acceptance: RequestAcceptance, seed: int = 0) -> None:
        self.offsets, self.acceptance, self.rng = offsets, acceptance, np.random.default_rng(seed)
        self.expected, self.accepted = np.zeros(len(offsets)), np.zeros(len(offsets))

    def run(self, rounds: int = 400, nodes: int = 6) -> None:
        for number in range(rounds):
            branches = [request(i, 100 + TOKENS * number) for i in range(len(self.offsets))]
            branch_N = np.repeat(np.arange(len(branches)), nodes)
            level_N = self.rng.integers(self.offsets.shape[1], size=len(branch_N))
            base_N = self.rng.uniform(0.1, 0.9, size=len(branch_N))
            odds_N = self.acceptance.odds_of(branches)[branch_N, level_N]
            truth_N = [shift(p, by) for p, by in zip(base_N, self.offsets[branch_N, level_N], strict=True)]
            expected_N = base_N * odds_N / (1 - base_N + base_N * odds_N)
            accepted_N = self.rng.random(len(branch_N)) < truth_N
            move_offsets(self.acceptance.open_rows(branches), branch_N, level_N, expected_N, accepted_N)
            if number >= rounds // 2:
                self.expected += np.bincount(branch_N, expected_N)
                self.accepted += np.bincount(branch_N, accepted_N)

    def error(self) -> float:
        """Root mean square of what was expected of a request, over what was accepted."""
        return float(np.sqrt(np.mean((self.expected / self.accepted - 1) ** 2)))


@pytest.mark.parametrize("seed", range(5))
def test_what_is_expected_of_each_request_and_of_all_is_what_is_accepted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    offsets = rng.normal(0, 0.8, size=(8, 1)) + rng.normal(0, 0.3, size=(8, LEVELS))
    known = RequestSimulation(offsets, RequestAcceptance(), seed)
    unknown = RequestSimulation(offsets, RequestAcceptance(request_sd=1e-3, order_sd=1e-3), seed)
    for simulation in (known, unknown):
        simulation.run()
    assert known.expected.sum() == pytest.approx(known.accepted.sum(), rel=0.03)
    np.testing.assert_allclose(known.expected, known.accepted, rtol=0.2)
    assert known.error() < 0.5 * unknown.error()  # of one estimate for all


@pytest.mark.parametrize(("low", "high"), [(-2.0, 2.0), (-1.0, 0.0), (0.0, 1.0)])
def test_two_requests_with_different_acceptance_get_different_estimates(low: float, high: float) -> None:
    simulation = RequestSimulation(np.array([[low], [high]]), RequestAcceptance())
    simulation.run()
    first, second = np.log(simulation.acceptance.odds_of([request(0, 1300), request(1, 1300)]))[:, 0]
    assert first == pytest.approx(low, abs=0.4)
    assert second == pytest.approx(high, abs=0.4)
    assert second - first > (high - low) / 2


def test_orders_of_a_request_differ_and_one_without_outcomes_is_as_its_request() -> None:
    simulation = RequestSimulation(np.array([[0.0, -2.0]]), RequestAcceptance())
    simulation.run()
    odds = np.log(simulation.acceptance.odds_of([request(0, 1300)])[0])
    assert odds[0] - odds[1] > 1.0
    assert odds[1] < odds[2] < odds[0]
    assert len(set(odds[2:].tolist())) == 1


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("expected", [0.01, 0.5, 0.99])
def test_one_outcome_says_little_and_many_say_more(accepted: bool, expected: float) -> None:
    acceptance = RequestAcceptance(0.3, 0.3)
    assert (acceptance.odds_of([request(0)]) == 1).all()
    shifts = []
    for _ in range(20):
        move_offsets(acceptance.open_rows([request(0)]), *outcomes(1, expected, accepted))
        shifts.append(abs(float(np.log(acceptance.odds_of([request(0)])[0, 0]))))
    assert 0 < shifts[0] <= 2 * 0.3**2
    assert shifts == sorted(shifts)
    assert acceptance.odds_of([request(1)])[0, 0] == 1  # of another request it says nothing


def outcomes(count: int, expected: float, accepted: bool) -> tuple[np.ndarray, ...]:
    zeros = np.zeros(count, dtype=np.int64)
    return zeros, zeros, np.full(count, expected), np.full(count, accepted)


def test_a_refused_request_is_as_good_as_new_after_a_while_without_drafts() -> None:
    acceptance = RequestAcceptance()
    for number in range(300):
        move_offsets(acceptance.open_rows([request(0, 100 + number)]), *outcomes(5, 0.5, accepted=False))
    odds = [float(acceptance.odds_of([request(0, 400 + later)])[0, 0]) for later in range(0, 5000, 100)]
    assert odds[0] < 0.05
    assert odds == sorted(odds)
    assert odds[-1] > 0.9
    assert acceptance.odds_of([request(0, 10)])[0, 0] <= odds[0]  # a text that was cut back


def test_a_refused_request_is_drafted_for_now_and_then_and_soon_again_once_it_is_good() -> None:
    """It drafts as the throughput rule does: where the estimate is above a limit."""
    drafter, plan, drafted = TreeDrafter(FakeSource(), "likely"), DraftPlan((3, 3), 6), []
    limited = replace(plan, least_probabilities=(0.25, 0.0))
    for number in range(1200):
        texts = [branch((1, 2, 3) * (1 + number), seed=seed) for seed in (5, 6)]
        drafts = drafter.propose(texts, limited)
        drafted.append(len(drafts[0]) > 0)
        paths = (draft_path(drafts[0]) if number >= 900 else (), draft_path(drafts[1]))
        drafter.observe([Feedback(one, draft, path) for one, draft, path in zip(texts, drafts, paths, strict=True)])
    refused, good = drafted[100:900], drafted[950:]
    assert 0.1 * len(refused) < refused.count(False)
    assert all(any(refused[begin : begin + 100]) for begin in range(0, len(refused), 100))
    assert all(good)


def draft_path(draft: Draft) -> tuple[int, ...]:
    """The path to the deepest node."""
    return draft.path_to(int(np.argmax(draft.depths))) if len(draft) else ()


def test_the_drafter_estimates_the_same_context_as_its_request_deserves() -> None:
    drafter, plan = TreeDrafter(FakeSource(), "likely"), DraftPlan((4, 4), 8)
    texts = [branch((1, 2, 3), seed=5), branch((1, 2, 3), seed=6)]
    first = drafter.propose(texts, plan)
    assert first[0] == first[1]
    for _ in range(30):
        drafts = drafter.propose(texts, plan)
        drafter.observe([Feedback(texts[0], drafts[0], draft_path(drafts[0])), Feedback(texts[1], drafts[1], ())])
    liked, refused = drafter.propose(texts, plan)
    assert sum(liked.path_probabilities) > 1.5 * sum(refused.path_probabilities)
    for draft in (liked, refused):
        draft.assert_invariants()


def test_memory_is_bounded_and_the_request_that_was_not_seen_for_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_acceptance, "MOST_REQUESTS", 3)
    acceptance = RequestAcceptance()
    for number in (0, 1, 2, 0, 3):
        move_offsets(acceptance.open_rows([request(number)]), *outcomes(5, 0.5, accepted=True))
    known = [number for number in range(4) if acceptance.odds_of([request(number)])[0, 0] != 1]
    assert known == [0, 2, 3]
    once, twice = acceptance.odds_of([request(3), request(0)])[:, 0]
    assert once < twice  # a row is given on without what was in it


@pytest.mark.parametrize("name", ["request_sd", "order_sd", "half_life"])
def test_wrong_settings_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        RequestAcceptance(**{name: 0})
