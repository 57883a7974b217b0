"""Measures what drafting and each draft node cost, from the rounds that drafted."""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY = 1 - 1 / 100  # per round
_PRIOR_ROUNDS = 4.0  # weight of what was expected before the first round
_DISTURBED = 4.0  # times what a round with its nodes is expected to take: it was disturbed, and says nothing


@dataclass
class NodeCost:
    """Fits seconds of drafted rounds = those of a plain round + drafting + nodes * seconds per node * `factor`.

    All numbers are relative to the plain round, so that small and large rounds count alike. Drafting has a price of its
    own (proposing, learning): without it, rounds of few nodes would make nodes look expensive.

    drafting  that price, as a share of a plain round
    """

    factor: float = 1.0
    drafting: float = 0.0
    _weight: float = _PRIOR_ROUNDS
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def observe(self, seconds: float, plain_seconds: float, node_seconds: float) -> None:
        """Records a drafted round; `node_seconds` were expected of its nodes. *Mutates*."""
        if seconds > _DISTURBED * (plain_seconds + node_seconds):
            return
        x, y = node_seconds / plain_seconds, seconds / plain_seconds - 1
        self._weight = _MEMORY * self._weight + 1
        self._x, self._y = _MEMORY * self._x + x, _MEMORY * self._y + y
        self._xx, self._xy = _MEMORY * self._xx + x * x, _MEMORY * self._xy + x * y
        # the slope of a line through the rounds, drawn to 1 by a few rounds of the usual size
        usual = _PRIOR_ROUNDS * (self._xx / self._weight)
        spread = self._xx - self._x * self._x / self._weight
        together = self._xy - self._x * self._y / self._weight
        if usual > 0:
            self.factor = min(max((together + usual) / (spread + usual), 0.25), 4.0)
        self.drafting = max(0.0, (self._y - self.factor * self._x) / self._weight)
