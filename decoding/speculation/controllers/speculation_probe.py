"""Measures whether speculation pays at all, by rounds without it.

A cost curve gives the time of one more draft node; not the time to draft in the first place, nor what else the machine
is doing. So a few rounds now and then are decoded the other way, and the faster way gets the rounds in between.
Loads are measured apart, by powers of two: what pays for one branch may not for a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_PROBE_ROUNDS = 2  # rounds the other way
_WARMUP_TOKENS = 512  # tokens before the first probe: a drafter has to learn before it can pay
_WARMUP_ROUNDS = (8, 64)  # but at least and at most so many rounds
_PROBE_INTERVAL = 8  # rounds before the next probe when its result has changed
_MAX_INTERVAL = 160  # maximum rounds between probes; their share of all rounds is their cost
_MEMORY_ROUNDS = 64.0  # of either way
_MAX_RELATIVE_COST = 5.0  # times the expected cost of a round; a slower one was disturbed by another process


@dataclass
class _DecodingRate:
    """Recent tokens per branch, and their cost in units of the expected cost of a plain round."""

    tokens: float = 0.0
    cost: float = 0.0

    def observe(self, tokens: float, cost: float) -> None:
        keep = 1 - 1 / _MEMORY_ROUNDS
        self.tokens, self.cost = keep * self.tokens + tokens, keep * self.cost + min(cost, _MAX_RELATIVE_COST)

    @property
    def tokens_per_cost(self) -> float:
        return self.tokens / self.cost if self.cost else 0.0


@dataclass
class _LoadProbe:
    """Probe of one batch size. Its cycle is `interval` rounds the better way, then `_PROBE_ROUNDS` the other way."""

    interval: int
    pays: bool = True
    position: int = 0
    with_drafts: _DecodingRate = field(default_factory=_DecodingRate)
    plain: _DecodingRate = field(default_factory=_DecodingRate)

    @property
    def should_draft(self) -> bool:
        return self.pays if self.position < self.interval else not self.pays

    def observe(self, drafted: bool, tokens: float, cost: float) -> None:
        if self.position == self.interval:  # a probe measures the present: its first round drops the old rate
            if drafted:
                self.with_drafts = _DecodingRate()
            else:
                self.plain = _DecodingRate()
        (self.with_drafts if drafted else self.plain).observe(tokens, cost)
        self.position += 1
        if self.position == self.interval + _PROBE_ROUNDS:
            paid, self.pays = self.pays, self.with_drafts.tokens_per_cost > self.plain.tokens_per_cost
            self.interval = min(2 * self.interval, _MAX_INTERVAL) if self.pays == paid else _PROBE_INTERVAL
            self.position = 0


class SpeculationProbe:
    """Decides between speculative and plain rounds; starts with speculation."""

    def __init__(self) -> None:
        self._probes: dict[int, _LoadProbe] = {}

    def should_draft(self, branches: int) -> bool:
        """Returns whether the next round drafts."""
        return self._probe_of(branches).should_draft

    def observe(self, branches: int, *, drafted: bool, tokens: int, cost: float) -> None:
        """Records a round. *Mutates*.

        `tokens` were committed; `cost` is the round's seconds over the expected seconds of a plain round.
        """
        self._probe_of(branches).observe(drafted, tokens / branches, cost)

    def relative_plain_cost(self, branches: int) -> float | None:
        """Returns the measured over the expected cost of plain rounds; None before the first probe.

        Measured at other loads where this one has no plain rounds yet.
        """
        at_this_load = self._probe_of(branches).plain
        rates = [at_this_load] if at_this_load.tokens else [probe.plain for probe in self._probes.values()]
        tokens = sum(rate.tokens for rate in rates)
        return sum(rate.cost for rate in rates) / tokens if tokens else None

    def _probe_of(self, branches: int) -> _LoadProbe:
        least, most = _WARMUP_ROUNDS
        interval = min(max(_WARMUP_TOKENS // max(1, branches), least), most)
        return self._probes.setdefault(branches.bit_length(), _LoadProbe(interval))
