"""Measures what drafting and each draft node cost, from the rounds that drafted."""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY = 1 - 1 / 100  # per round
_PRIOR_ROUNDS = 4.0  # weight of what was expected before the first round
_AFTER_REST = 0.5  # of what was measured before a rest


@dataclass
class NodeCost:
    """Fits seconds of drafted rounds = those of a plain round + drafting + nodes * seconds per node * `factor`.

    All numbers are relative to the plain round, so that small and large rounds count alike. Drafting has a price of its
    own (proposing, learning): without it, rounds of few nodes would make nodes look expensive. One that took n times as
    long as expected counts n ** 1.5 times less: it may have loaded machine code, or another process slowed it down.

    drafting  that price, as a share of a plain round
    """

    factor: float = 1.0
    drafting: float = 0.0
    _prior: float = _PRIOR_ROUNDS
    # sums over rounds of their weights and of weight times x, y, x * x, x * y
    _sums: tuple[float, ...] = (0.0,) * 5

    def observe(self, seconds: float, plain_seconds: float, node_seconds: float) -> None:
        """Records a drafted round; `node_seconds` were expected of its nodes. *Mutates*."""
        x, y = node_seconds / plain_seconds, max(seconds, 1e-9) / plain_seconds - 1
        weight = min((1 + self.drafting + self.factor * x) / (1 + y), 1.0) ** 1.5
        new = weight, weight * x, weight * y, weight * x * x, weight * x * y
        self._prior *= _MEMORY
        self._sums = tuple(_MEMORY * before + added for before, added in zip(self._sums, new, strict=True))
        self._fit()

    def begin_trial(self) -> None:
        """Counts what was measured until now less: nodes that looked too dear were not drafted since. *Mutates*."""
        self._prior += (1 - _AFTER_REST) * (_PRIOR_ROUNDS - self._prior)
        self._sums = tuple(_AFTER_REST * each for each in self._sums)
        self._fit()

    def _fit(self) -> None:
        measured, x, y, xx, xy = self._sums
        # rounds that cost what was expected; they have no spread, so they draw the line's height alone
        total = measured + self._prior
        # the slope of a line through the rounds, drawn to 1 by a few rounds of the usual size
        usual = _PRIOR_ROUNDS * (xx / measured) if measured else 0.0
        spread = xx - x * x / total
        if usual > 0:
            self.factor = min(max((xy - x * y / total + usual) / (spread + usual), 0.25), 4.0)
        self.drafting = max(0.0, (y - self.factor * x) / total)
