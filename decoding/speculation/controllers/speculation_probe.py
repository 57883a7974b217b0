"""Whether guessing pays at all, found out by doing without.

A cost curve tells what one more guess takes; not what it takes to draft in the first place, nor what else the machine
is doing. So a few rounds now and then are decoded the other way, and whichever way got more tokens out of a second has
the rounds in between. Loads are judged apart, by powers of two: what pays for one branch may not for a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_TRIAL = 2  # rounds the other way
_WARM = 512  # tokens before the first trial: guessing has to learn before it can pay
_WARM_ROUNDS = (8, 64)  # but at least and at most so many rounds
_AGAIN = 8  # rounds before the next trial when the verdict has changed
_LONGEST = 160  # rounds between trials at most: what trials may cost is a matter of their share
_MEMORY = 64.0  # rounds of either way
_HICCUP = 5.0  # of what a round should take: more is somebody else's doing


@dataclass
class _Way:
    """Tokens per branch, and what they took in units of what a plain round should; of late."""

    tokens: float = 0.0
    cost: float = 0.0

    def observe(self, tokens: float, cost: float) -> None:
        keep = 1 - 1 / _MEMORY
        self.tokens, self.cost = keep * self.tokens + tokens, keep * self.cost + min(cost, _HICCUP)

    @property
    def rate(self) -> float:
        return self.tokens / self.cost if self.cost else 0.0


@dataclass
class _Load:
    """The trials of one size of batch. The cycle is `wait` rounds as it pays, then a trial."""

    wait: int
    pays: bool = True
    at: int = 0
    guessing: _Way = field(default_factory=_Way)
    plain: _Way = field(default_factory=_Way)

    @property
    def guess(self) -> bool:
        return self.pays if self.at < self.wait else not self.pays

    def observe(self, guessed: bool, tokens: float, cost: float) -> None:
        if self.at == self.wait:  # a trial is to find out how it is now
            self._set(guessed, _Way())
        (self.guessing if guessed else self.plain).observe(tokens, cost)
        self.at += 1
        if self.at == self.wait + _TRIAL:
            paid, self.pays = self.pays, self.guessing.rate > self.plain.rate
            self.at, self.wait = 0, min(2 * self.wait, _LONGEST) if self.pays == paid else _AGAIN

    def _set(self, guessed: bool, way: _Way) -> None:
        if guessed:
            self.guessing = way
        else:
            self.plain = way


class Trials:
    """Starts with guessing."""

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}

    def guess(self, branches: int) -> bool:
        """Whether to guess in the next round."""
        return self._of(branches).guess

    def observe(self, branches: int, *, guessed: bool, tokens: int, cost: float) -> None:
        """*Mutates*. `tokens` were committed; `cost` is the round's seconds over those expected of a plain one."""
        self._of(branches).observe(guessed, tokens / branches, cost)

    def plain_cost(self, branches: int) -> float | None:
        """What plain rounds took over what was expected of them, at other loads if there were none at this one; None
        before the first trial."""
        own = self._of(branches).plain
        known = [own] if own.tokens else [load.plain for load in self._loads.values()]
        tokens = sum(way.tokens for way in known)
        return sum(way.cost for way in known) / tokens if tokens else None

    def _of(self, branches: int) -> _Load:
        least, most = _WARM_ROUNDS
        return self._loads.setdefault(branches.bit_length(), _Load(min(max(_WARM // max(1, branches), least), most)))
