"""Decides which rounds draft: drafting lives on the time that it saves.

A batch size drafts while it has a *stake*, in seconds. Each drafted round adds to it what it saved: the time in which
plain rounds would have committed as many tokens, minus its own. At zero the size rests. What starts it again comes from
a common *balance*, into which all rounds pay a small share of their time, and drafting what it saves beyond need. So
all that drafting can lose, the stakes of trials, is at most that share of the time, whatever the noise of the clock: a
trial on luck ends as soon as the luck does.

Next to the round of a large model drafting takes no time, and drafts are as many as are expected to pay, often none. So
there a trial costs little, and they are more and earlier. Where each row of a round costs, as of many branches of a
small model on a CPU, a trial loses much and drafts win little: there it waits until a run is long enough for both.

Sizes are told apart by powers of two: drafts may pay for one branch and not for a hundred. All seconds are compared
with those that a cost curve expects of a plain round of the same size and context, times the factor by which plain
rounds of this size differ from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from decoding.speculation.controllers.nap import Nap

RoundKind = Literal["plain", "learning", "drafted"]
"""A plain round without drafts, one that the drafter learns from, or one with drafts, from which it learns too."""

_ALLOWANCE = 0.03  # share of the time of all rounds that trials may lose, for one branch
_MANY_BRANCHES = 8  # of which the share is half, and of twice as many a fifth: the more rows, the less drafts can win
_FEW_PLAIN = 8  # rounds of many before a trained drafter's first trial: two alone are an uncertain yardstick
_MANY_OF_TRAINED = 32  # for a trained drafter, whose drafts of 16 branches win back in 50 rounds what a trial loses
_LEARNING = 0.008  # share of the time of plain rounds that learning from some of them may take
_STAKE = 1.5  # plain rounds: what a trial may lose
_STAKE_OF_TRAINED = 4.0  # of a trained drafter, whose first round computes all texts until then
_CREDIT = 2.0  # plain rounds: the balance at the start, enough for a first trial where rounds become slower
_CREDIT_OF_TRAINED = 9.0  # the same of a trained drafter: for two trials, of which another process may slow down one
_LONG_CREDIT = 4.0  # the same where rounds are long
_MOST_STAKE = 8.0  # plain rounds: savings beyond it go to the balance
_MOST_BALANCE = 10.0  # plain rounds: more, and old savings would pay for the drafts of today
_FIRST_TRIAL = 16  # rounds before the first trial, in which the drafter learns; then between trials, twice as many each
_FIRST_TRIAL_OF_FEW = 32  # for fewer than `_MANY_BRANCHES`, which teach as much in more rounds
_FIRST_TRIAL_OF_DEAR = 128  # for many whose nodes are dear: a run of 100 rounds does not win back what a trial loses
_DRAFTING, _DRAFTING_OF_BRANCH = 2.5e-4, 4e-5  # seconds on the host for a draft's round, and more for each branch
_LONG = 20  # times as long as that: next to such a round drafting is nothing
_DEAR = 0.25  # of a plain round for a node of each branch: then drafts win little, and a trial loses much
_SHORT_REST = 2  # rounds between trials after one that has saved much: a text that was easy to draft often is so again
_MOST_REST = 256
_PLAIN_INTERVAL = 128  # drafted rounds between some plain ones, which measure anew what they are compared with
_PLAIN_ROUNDS = 3  # in a row, of which the last counts: the first, beside drafts, takes up to a quarter longer
_NEWEST = 1 / 8  # weight of the newest round in the factor of plain rounds
_LEARNING_COST = 0.5  # plain rounds, where nodes are dear, until it is measured
_MOST_LEARNING_INTERVAL = 64
_LONGEST_NAP = 16  # rounds: with few branches, to ask about each takes 4 % of a round of the bundled model
_MOST_CHANGE = 1.25  # of a factor that one round may suggest: one that another process slowed down says little


@dataclass
class _LoadRecord:
    """What is known of one range of batch sizes.

    rest, interval  rounds until the next trial, and as they were after the last one
    is_long         whether drafting takes next to nothing of a round
    plain_factor    seconds of plain rounds over those that the cost curve expects
    num_plain       plain rounds that were measured
    was_tried       whether it has drafted, or one whose verdict it took over
    stake           seconds that drafting may still lose; None while the size rests
    learning_cost   what a round that the drafter learns from takes longer, as a share of a plain round
    """

    rest: int
    interval: int
    is_long: bool
    learning_cost: float = 0.0
    plain_factor: float = 1.0
    num_plain: int = 0
    was_tried: bool = False
    stake: float | None = None
    since_plain: int = 0
    since_learning: int = 0

    def observe_plain(self, ratio: float, rounds: int = 1) -> None:
        """Refines the factor of plain rounds by some of them, which took `ratio` on average. *Mutates*."""
        self.num_plain, self.since_plain = self.num_plain + rounds, 0
        if self.num_plain <= 2:  # a round that another process slowed down must not be the yardstick
            self.plain_factor = ratio if self.num_plain == 1 else min(ratio, self.plain_factor)
        else:
            weight = 1 - (1 - _NEWEST) ** rounds
            self.plain_factor += weight * (_clip_ratio(ratio, self.plain_factor) - self.plain_factor)

    def observe_learning(self, ratio: float) -> None:
        """Refines the cost of learning by the seconds of such a round over those of a plain one. *Mutates*."""
        cost = _clip_ratio(ratio, 1 + self.learning_cost) - 1
        self.learning_cost = max(0.0, self.learning_cost + _NEWEST * (cost - self.learning_cost))

    def end_trial(self) -> None:
        """Begins a rest. *Mutates*."""
        self.stake, self.rest, self.interval = None, self.interval, min(2 * self.interval, _MOST_REST)


class SpeculationGate:
    """Decides the kind of each round.

    balance        seconds that trials may lose, of all batch sizes together
    seconds_saved  by all drafted rounds until now, less those of learning; below 0 where that cost more
    num_trials     trials that were begun
    """

    def __init__(self) -> None:
        self.balance = self.seconds_saved = 0.0
        self.num_trials = 0
        self._records: dict[int, _LoadRecord] = {}
        self._has_credit = self._is_trusted = False
        self._most_loss, self._credit = _STAKE, _CREDIT

    def trust_drafter(self) -> None:
        """Tries drafts after the first plain rounds: there is nothing to be learned before. *Mutates*."""
        self._is_trusted, self._most_loss, self._credit = True, _STAKE_OF_TRAINED, _CREDIT_OF_TRAINED

    def plan_round(self, branches: int, curve_seconds: float, node_seconds: float = 0.0) -> RoundKind:
        """Returns the kind of the next round. *Mutates*.

        The cost curve expects `curve_seconds` of a plain one, and `node_seconds` more with a draft node of each branch.
        """
        record = self._record_of(branches, curve_seconds, node_seconds)
        if record.num_plain < 2:
            return "plain"
        if record.stake is not None:
            record.since_plain += 1
            return "plain" if record.since_plain > _PLAIN_INTERVAL else "drafted"
        record.rest -= 1
        stake = self._most_loss * record.plain_factor * curve_seconds
        can_try = self.balance >= stake
        if record.rest <= 0 and can_try:
            self.balance -= stake
            record.stake, record.was_tried = stake, True
            self.num_trials += 1
            return "drafted"
        record.since_learning += 1
        is_next = record.rest == 1 and can_try  # a trial must know what was written until now
        if is_next or record.since_learning >= _learning_interval(record):
            record.since_learning = 0
            return "learning"
        return "plain"

    def observe(self, kind: RoundKind, branches: int, tokens: int, seconds: float, curve_seconds: float) -> None:
        """Records a round that committed `tokens`. *Mutates*."""
        record = self._record_of(branches)
        if kind == "plain" and (record.stake is None or record.since_plain >= _PLAIN_INTERVAL + _PLAIN_ROUNDS):
            record.observe_plain(seconds / curve_seconds)
        plain = record.plain_factor * curve_seconds
        if not self._has_credit and record.num_plain == 2:  # one round may have been a slow one
            # more than a trial takes: its seconds may grow until it begins
            credit = max(_LONG_CREDIT if record.is_long else 0.0, self._credit)
            self.balance, self._has_credit = credit * plain, True
        self._pay_in(branches, seconds, plain)
        if kind == "learning":
            record.observe_learning(seconds / plain)
            self.seconds_saved -= min(seconds, 2 * plain) - plain
        elif kind == "drafted" and record.stake is not None:
            saved = plain * tokens / branches - seconds
            saved = max(saved, -2 * plain)  # a round that another process slowed down says little
            self.seconds_saved += saved
            self._observe_saved(record, saved, plain)

    def begin_nap(self, branches: int, curve_seconds: float) -> Nap | None:
        """Returns next rounds that are certain to be plain, if there are some: it rests, and the balance is low.

        Nothing is to be asked of them, and nothing said, before `end_nap`.
        """
        record = self._record_of(branches)
        if record.num_plain <= 2 or record.stake is not None:
            return None
        plain = record.plain_factor * curve_seconds
        until_paid = int((self._most_loss * plain - self.balance) / (_allowance_of(branches, record.is_long) * plain))
        until_learning = int(_learning_interval(record)) - record.since_learning
        rounds = min(max(record.rest - 2, until_paid - 1), until_learning - 1, _LONGEST_NAP)
        return Nap(branches, rounds, _MOST_CHANGE * plain) if rounds > 0 else None

    def end_nap(self, nap: Nap, curve_seconds: float) -> None:
        """Records the rounds of a nap, of each of which the cost curve expects `curve_seconds`. *Mutates*."""
        record = self._record_of(nap.branches)
        record.rest -= nap.num_planned
        record.since_learning += nap.num_planned
        if nap.num_timed:
            record.observe_plain(nap.seconds / nap.num_timed / curve_seconds, nap.num_timed)
            self._pay_in(nap.branches, nap.seconds, record.plain_factor * curve_seconds, nap.num_timed)

    def plain_factor(self, branches: int) -> float:
        """Returns the seconds of plain rounds over those that the cost curve expects."""
        return self._record_of(branches).plain_factor

    def _pay_in(self, branches: int, seconds: float, plain: float, rounds: int = 1) -> None:
        """Adds the share of some rounds that took `seconds`, of which each is expected to take `plain`."""
        share = _allowance_of(branches, self._record_of(branches).is_long)
        self.balance = min(self.balance + share * min(seconds, 2 * rounds * plain), _MOST_BALANCE * plain)

    def _observe_saved(self, record: _LoadRecord, saved: float, plain: float) -> None:
        assert record.stake is not None
        record.stake += saved
        if record.stake < 0:
            record.end_trial()
        elif record.stake > _MOST_STAKE * plain:
            self.balance += record.stake - _MOST_STAKE * plain
            record.stake, record.interval = _MOST_STAKE * plain, _SHORT_REST

    def _record_of(self, branches: int, seconds: float = 0.0, node_seconds: float = 0.0) -> _LoadRecord:
        """Returns the record of a batch size; `seconds` and `node_seconds` are those of `plan_round`.

        A new one begins with the verdict of the nearest size. *Mutates*.
        """
        size = branches.bit_length()  # 1, 2-3, 4-7, ... branches
        if size not in self._records:
            known = [other for other, record in self._records.items() if record.num_plain >= 2]
            near = min(known, key=lambda other: abs(other - size), default=None)
            record = _begin_record(branches, seconds, node_seconds, self._is_trusted)
            self._records[size] = record if near is None else _copy_verdict(self._records[near], record)
        return self._records[size]


def _allowance_of(branches: int, is_long: bool) -> float:
    return _ALLOWANCE if is_long else _ALLOWANCE / (1 + (branches / _MANY_BRANCHES) ** 2)


def _learning_interval(record: _LoadRecord) -> float:
    return min(record.learning_cost / _LEARNING, _MOST_LEARNING_INTERVAL)


def _begin_record(branches: int, seconds: float, node_seconds: float, is_trusted: bool) -> _LoadRecord:
    if seconds >= _LONG * (_DRAFTING + _DRAFTING_OF_BRANCH * branches):
        return _LoadRecord(_SHORT_REST, _SHORT_REST, is_long=True)
    many = _MANY_OF_TRAINED if is_trusted else _MANY_BRANCHES
    if branches >= many and node_seconds > _DEAR * seconds:
        first = _FIRST_TRIAL_OF_DEAR
        return _LoadRecord(first, first, is_long=False, learning_cost=_LEARNING_COST)
    if is_trusted:
        return _LoadRecord(_FEW_PLAIN if branches >= _MANY_BRANCHES else _SHORT_REST, _FIRST_TRIAL, is_long=False)
    first = _FIRST_TRIAL_OF_FEW if branches < _MANY_BRANCHES else _FIRST_TRIAL
    return _LoadRecord(first, first, is_long=False)


def _copy_verdict(near: _LoadRecord, new: _LoadRecord) -> _LoadRecord:
    """Returns a new record that begins like one of another size: where that one drafts, with a trial.

    One that was not tried yet has no verdict: what it has waited counts.
    """
    known = replace(new, plain_factor=near.plain_factor, num_plain=near.num_plain)
    if not near.was_tried:
        return replace(known, rest=new.rest - (near.interval - near.rest))
    rest = near.rest if near.stake is None else 0
    return replace(known, rest=rest, interval=near.interval, was_tried=True, learning_cost=near.learning_cost)


def _clip_ratio(ratio: float, expected: float) -> float:
    return min(max(ratio, expected / _MOST_CHANGE), _MOST_CHANGE * expected)
