"""Measures whether speculation raises the decoding rate, by occasional rounds without it.

A cost curve gives the time of one more draft node, but neither the fixed time of drafting nor the load by other
processes. So a few rounds at intervals are decoded the other way, and the rounds between use the faster way.
Batch sizes are measured separately, by powers of two: speculation may pay for one branch and not for a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_PROBE_ROUNDS = 2  # rounds of a probe
_WARMUP_TOKENS = 512  # tokens before the first probe: a drafter must learn first
_WARMUP_ROUNDS = (8, 64)  # minimum and maximum rounds before the first probe
_PROBE_INTERVAL = 8  # rounds before the next probe when its result has changed
_MAX_INTERVAL = 160  # maximum rounds between probes, whose share of all rounds is their cost
_MEMORY_ROUNDS = 64.0  # weight of the rounds of either way; older ones decay
_MAX_RELATIVE_COST = 5.0  # times the expected cost of a round; a slower round was disturbed by another process


@dataclass
class _DecodingRate:
    """Recent tokens per branch, and their cost in units of the expected cost of a plain round."""

    tokens: float = 0.0
    cost: float = 0.0

    def observe(self, tokens: float, cost: float) -> None:
        decay = 1 - 1 / _MEMORY_ROUNDS
        self.tokens, self.cost = decay * self.tokens + tokens, decay * self.cost + min(cost, _MAX_RELATIVE_COST)

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
        if self.position == self.interval:  # the first round of a probe drops the rate of the last probe
            if drafted:
                self.with_drafts = _DecodingRate()
            else:
                self.plain = _DecodingRate()
        (self.with_drafts if drafted else self.plain).observe(tokens, cost)
        self.position += 1
        if self.position == self.interval + _PROBE_ROUNDS:
            paid_before, self.pays = self.pays, self.with_drafts.tokens_per_cost > self.plain.tokens_per_cost
            self.interval = min(2 * self.interval, _MAX_INTERVAL) if self.pays == paid_before else _PROBE_INTERVAL
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

    def _probe_of(self, branches: int) -> _LoadProbe:
        # Bit length: 1, 2-3, 4-7, ... branches have a probe each.
        least, most = _WARMUP_ROUNDS
        interval = min(max(_WARMUP_TOKENS // max(1, branches), least), most)
        return self._probes.setdefault(branches.bit_length(), _LoadProbe(interval))
