"""The gate drafts where that is faster, and loses next to nothing where it is not."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from decoding.speculation.controllers.nap import Nap
from decoding.speculation.controllers.speculation_gate import RoundKind, SpeculationGate

PLAIN = 1e-3
"""Seconds of a plain round that the cost curve expects."""

LONG = 0.1
"""The same of a model next to which drafting takes no time."""


@dataclass
class Rounds:
    """A machine on which drafted rounds commit `gain` times the tokens for `cost` times the seconds.

    bias      seconds of all rounds over those that the cost curve expects
    learning  what a round that the drafter learns from takes longer, as a share
    hiccups   share of rounds that another process slows down tenfold
    naps      whether the gate is asked nothing while it rests
    plain     seconds of a plain round that the cost curve expects
    after     what the first plain round after a drafted one takes longer, as a share
    trained   whether the drafter is
    first     how many times as long as others the first drafted round takes
    """

    gain: float
    cost: float
    bias: float = 1.0
    learning: float = 0.25
    noise: float = 0.12
    hiccups: float = 0.02
    seed: int = 0
    naps: bool = True
    plain: float = PLAIN
    after: float = 0.0
    trained: bool = False
    first: float = 1.0
    kinds: Counter[str] = field(default_factory=Counter)
    num_asked: int = 0
    seconds: float = 0.0
    _gate: SpeculationGate = field(default_factory=SpeculationGate)
    _nap: Nap | None = None
    _last_kind: RoundKind = "plain"

    @property
    def estimated_speedup(self) -> float:
        """Seconds that plain rounds would have taken over those of all rounds."""
        return 1 + self._gate.seconds_saved / self.seconds

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        if self.trained:
            self._gate.trust_drafter()

    def run(self, rounds: int, branches: int = 16) -> float:
        """Returns tokens per second over those of plain decoding, without the luck of the clock."""
        seconds, tokens = 0.0, 0
        for _ in range(rounds):
            kind = self._plan_round(branches)
            factor = {"plain": 1.0, "learning": 1 + self.learning, "drafted": self.cost}[kind]
            fair = self.plain * self.bias * factor * (1.0 if self.kinds["drafted"] or kind != "drafted" else self.first)
            if kind == "plain" and self._last_kind == "drafted":
                fair *= 1 + self.after
            self._last_kind = kind
            clock = fair * self._dice.lognormvariate(0, self.noise) * (10 if self._dice.random() < self.hiccups else 1)
            committed = sum(self._draw_tokens() for _ in range(branches)) if kind == "drafted" else branches
            self._observe(kind, branches, committed, clock)
            self.kinds[kind] += 1
            seconds, tokens = seconds + fair, tokens + committed
            self.seconds += clock
        return tokens / branches / (seconds / (self.plain * self.bias))

    def _plan_round(self, branches: int) -> RoundKind:
        if self._nap is not None:
            if self._nap.plan_round(branches):
                return "plain"
            self._gate.end_nap(self._nap, self.plain)
            self._nap = None
        self.num_asked += 1
        return self._gate.plan_round(branches, self.plain)

    def _observe(self, kind: RoundKind, branches: int, tokens: int, seconds: float) -> None:
        if self._nap is not None:
            self._nap.add_round(seconds)
            return
        self._gate.observe(kind, branches, tokens, seconds, self.plain)
        if kind == "plain" and self.naps:
            self._nap = self._gate.begin_nap(branches, self.plain)

    def _draw_tokens(self) -> int:
        whole = int(self.gain)
        return whole + (self._dice.random() < self.gain - whole)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("branches", [1, 16, 64])
@pytest.mark.parametrize(("gain", "cost"), [(1.0, 1.05), (1.0, 3.0), (1.2, 1.6), (1.5, 1.6)])
def test_where_drafts_do_not_pay_next_to_nothing_is_lost(gain: float, cost: float, branches: int, seed: int) -> None:
    assert Rounds(gain, cost, seed=seed).run(3000, branches) > (0.97 if branches == 1 else 0.98)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("branches", [1, 4, 16, 64])
def test_a_trained_drafter_drafts_from_the_first_rounds(branches: int, seed: int) -> None:
    """Although its first round computes all texts until then."""
    trained, other = (Rounds(3.0, 1.6, seed=seed, trained=trained, first=2.5) for trained in (True, False))
    for rounds in (trained, other):
        rounds.run(60, branches)
    assert trained.kinds["drafted"] > 50 > other.kinds["drafted"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("branches", [1, 16, 64])
def test_a_trained_drafter_that_does_not_pay_loses_little(branches: int, seed: int) -> None:
    assert Rounds(1.0, 1.6, seed=seed, trained=True, first=2.5).run(3000, branches) > (0.965 if branches == 1 else 0.98)


@pytest.mark.parametrize("seed", range(3))
def test_a_gate_that_rests_is_seldom_asked_and_judges_the_same(seed: int) -> None:
    napping, awake = (Rounds(1.0, 1.5, seed=seed, naps=naps) for naps in (True, False))
    for rounds in (napping, awake):
        rounds.run(3000)
    assert awake.num_asked == 3000 > 6 * napping.num_asked
    for kind in ("drafted", "learning"):
        assert napping.kinds[kind] == pytest.approx(awake.kinds[kind], rel=0.5)


def test_rounds_that_were_not_timed_bring_the_next_trial_nearer() -> None:
    gate = SpeculationGate()
    for kind in ("plain", "plain", "plain", "learning", "learning"):
        gate.observe(kind, 1, 1, 2 * PLAIN if kind == "learning" else PLAIN, PLAIN)
    before, nap = gate.balance, gate.begin_nap(1, PLAIN)
    assert nap is not None
    rounds = 0
    while nap.plan_round(1):
        rounds += 1
    assert rounds > 5
    gate.end_nap(nap, PLAIN)
    assert gate.balance == before
    # the first trial of one branch comes after 32 rounds
    assert [gate.plan_round(1, PLAIN) for _ in range(32 - rounds)][-1] == "drafted"


@pytest.mark.parametrize(
    ("branches", "seconds", "first"), [(1, PLAIN, 32), (1, LONG, 2), (4, LONG, 2), (16, PLAIN, 16), (64, LONG, 2)]
)
def test_first_trial_is_early_where_many_branches_teach_or_rounds_are_long(
    branches: int, seconds: float, first: int
) -> None:
    gate, kinds = SpeculationGate(), list[RoundKind]()
    while "drafted" not in kinds:
        kinds.append(gate.plan_round(branches, seconds))
        gate.observe(kinds[-1], branches, branches, seconds, seconds)
    # two rounds more, which measure what plain ones take
    assert len(kinds) == first + 2


@pytest.mark.parametrize("branches", [8, 16, 100])
def test_a_short_run_is_plain_where_nodes_are_dear(branches: int) -> None:
    kinds = _plan_rounds(SpeculationGate(), branches, 100, node_seconds=0.3 * PLAIN)
    assert kinds.count("plain") >= 99


def test_a_long_run_tries_drafts_where_nodes_are_dear() -> None:
    assert "drafted" in _plan_rounds(SpeculationGate(), 16, 140, node_seconds=0.3 * PLAIN)


def test_a_size_of_which_nothing_was_measured_hands_on_no_verdict() -> None:
    """Often the first round is of one branch: the prompt's."""
    gate = SpeculationGate()
    gate.plan_round(1, PLAIN)
    assert _plan_rounds(gate, 16, 100, node_seconds=0.3 * PLAIN).count("plain") >= 99


def _plan_rounds(gate: SpeculationGate, branches: int, rounds: int, *, node_seconds: float) -> list[RoundKind]:
    """Returns the kinds of rounds in which drafts gain nothing."""
    kinds = list[RoundKind]()
    for _ in range(rounds):
        kinds.append(gate.plan_round(branches, PLAIN, node_seconds))
        gate.observe(kinds[-1], branches, branches, PLAIN, PLAIN)
    return kinds


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("gain", "cost"), [(1.5, 1.2), (2.0, 1.2), (2.5, 1.6), (4.0, 1.3)])
def test_where_they_pay_little_of_it_is_lost(gain: float, cost: float, seed: int) -> None:
    rounds = Rounds(gain, cost, seed=seed)
    rounds.run(100)
    assert rounds.run(1000) > 0.95 * gain / cost


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("gain", "cost"), [(1.0, 1.05), (1.2, 1.6), (2.0, 1.2), (4.0, 1.3)])
def test_the_seconds_saved_are_those_of_plain_rounds_for_the_same_tokens(gain: float, cost: float, seed: int) -> None:
    rounds = Rounds(gain, cost, learning=0.05, noise=0.05, hiccups=0.0, seed=seed, naps=False, bias=1.7)
    rate = rounds.run(2000)
    assert rounds.estimated_speedup == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_a_plain_round_right_after_drafts_is_no_yardstick(seed: int) -> None:
    """It takes longer; compared with it, drafts that lose would seem to pay."""
    rounds = Rounds(1.25, 1.35, hiccups=0.0, after=0.3, seed=seed)
    assert rounds.run(3000) > 0.97
    paying = Rounds(1.6, 1.25, hiccups=0.0, after=0.3, learning=0.05, seed=seed, naps=False)
    rate = paying.run(3000)
    assert paying.estimated_speedup == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize("seed", range(10))
def test_a_short_run_loses_no_more_than_its_first_trial(seed: int) -> None:
    """At most the stake and what its last round took more than was left."""
    assert Rounds(1.0, 1.6, seed=seed).run(100) > 0.95


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("branches", [1, 16, 64])
@pytest.mark.parametrize(("gain", "cost"), [(1.0, 1.05), (1.0, 3.0), (1.2, 1.6), (1.5, 1.6)])
def test_where_rounds_are_long_little_is_lost(gain: float, cost: float, branches: int, seed: int) -> None:
    rounds = Rounds(gain, cost, learning=0.01, seed=seed, plain=LONG)
    assert rounds.run(100, branches) > 0.87
    assert rounds.run(3000, branches) > 0.95


@pytest.mark.parametrize("seed", range(5))
def test_where_rounds_are_long_text_that_becomes_easy_is_found_soon(seed: int) -> None:
    """In a run of two hundred rounds, of which the first trials lose."""
    drafted = {}
    for plain in (PLAIN, LONG):
        rounds = Rounds(1.0, 1.6, learning=0.01, seed=seed, plain=plain)
        rounds.run(40)
        rounds.gain, before = 2.5, rounds.kinds["drafted"]
        rounds.run(160)
        drafted[plain] = rounds.kinds["drafted"] - before
    assert drafted[LONG] > 80 > drafted[PLAIN]


@pytest.mark.parametrize("bias", [0.3, 1.0, 4.0])
def test_a_curve_that_is_wrong_about_plain_rounds_does_not_deceive_it(bias: float) -> None:
    assert Rounds(1.2, 1.4, bias=bias).run(3000) > 0.98
    assert Rounds(2.0, 1.4, bias=bias).run(3000) > 1.3


@pytest.mark.parametrize("seed", range(5))
def test_texts_that_are_easy_now_and_then_are_found_soon(seed: int) -> None:
    """After a trial that saved much the next one comes soon, and what was saved pays for those that lose."""
    rounds, drafted = Rounds(8.0, 2.5, seed=seed), 0
    for _ in range(30):
        rounds.gain, before = 8.0, rounds.kinds["drafted"]
        rounds.run(20, branches=1)
        drafted += rounds.kinds["drafted"] - before
        rounds.gain = 1.0
        rounds.run(20, branches=1)
    assert drafted > 0.4 * 30 * 20


def test_it_changes_its_mind_when_things_change() -> None:
    rounds = Rounds(1.0, 1.5)
    rounds.run(1000)
    rounds.gain = 2.5
    rounds.run(600)
    assert rounds.run(300) > 1.5
    rounds.gain = 1.0
    # some of what was saved goes into trials
    assert rounds.run(1000) > 0.96


def test_sizes_are_judged_apart() -> None:
    """One branch pays and a hundred do not: old savings do not pay for drafts that lose."""
    rounds = Rounds(2.0, 1.2)
    for _ in range(20):
        rounds.gain, rounds.cost = 2.0, 1.2
        rounds.run(50, branches=1)
        rounds.gain, rounds.cost = 1.0, 1.5
        rounds.run(50, branches=100)
    rounds.gain, rounds.cost = 2.0, 1.2
    assert rounds.run(200, branches=1) > 1.5
    rounds.gain, rounds.cost = 1.0, 1.5
    assert rounds.run(200, branches=100) > 0.97


def test_a_new_size_begins_with_the_verdict_of_the_nearest() -> None:
    resting = Rounds(1.0, 2.0)
    resting.run(2000, branches=16)
    before = resting.kinds["drafted"]
    resting.run(30, branches=8)
    assert resting.kinds["drafted"] - before <= 1
    paying = Rounds(3.0, 1.2)
    paying.run(200, branches=16)
    before = paying.kinds["drafted"]
    paying.run(30, branches=8)
    assert paying.kinds["drafted"] - before > 25


def test_cheap_learning_happens_in_every_round_and_dear_learning_seldom() -> None:
    """Of a large model learning is nothing; of a tiny one it is a quarter of a round."""
    cheap, dear = Rounds(1.0, 1.5, learning=0.0, noise=0.0, hiccups=0.0), Rounds(1.0, 1.5, learning=0.5)
    cheap.run(1000)
    dear.run(1000)
    assert cheap.kinds["learning"] > 0.9 * cheap.kinds["plain"]
    assert dear.kinds["learning"] < 0.03 * dear.kinds["plain"]


@pytest.mark.parametrize("seed", range(5))
def test_beside_dear_rounds_the_drafter_learns_before_the_first_trial(seed: int) -> None:
    """A trial with a drafter that knows nothing would say nothing, and the next one is a hundred rounds away."""
    rounds = Rounds(1.0, 1.5, learning=0.01, noise=0.005, hiccups=0.0, seed=seed)
    rounds.run(16)
    assert rounds.kinds["learning"] >= 4
    assert rounds.kinds["drafted"] <= 1
