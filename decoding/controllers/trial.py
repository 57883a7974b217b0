"""Whether guessing pays at all at this load: tried out, not only predicted.

A cost curve knows what rows cost. It does not know what it costs to ask a drafter that then finds nothing worth
feeding, and to teach it, which with many branches live can be more than its guesses bring. So where the gain looks
small, guessing is left off for a few rounds now and then, and what brought more tokens per second stays for a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from decoding.speculation import Feedback, RoundCost

_BLOCK = 16  # rounds that a way is judged by
_STAY = 128  # rounds between trials
_CLEAR = 1.4  # a predicted speed-up that needs no trial
_FEW = 8  # with fewer branches than this, asking costs next to nothing


@dataclass
class _Load:
    """What is known of one load; `left` counts the rounds until the way is changed for a trial."""

    guessing: bool = True
    left: int = _BLOCK
    trying: bool = False
    seconds: dict[bool, deque[float]] = field(
        default_factory=lambda: {True: deque(maxlen=_BLOCK), False: deque(maxlen=_BLOCK)}
    )
    gains: deque[float] = field(default_factory=lambda: deque(maxlen=_BLOCK))


class Trial:
    """Keeps guessing on or off, for every power of two of branches by itself."""

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}

    def guesses(self, branches: int) -> bool:
        """Whether to guess in a round of so many branches."""
        return branches < _FEW or self._of(branches).guessing

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost, plain_seconds: float) -> None:
        """A round and what it would have taken without guesses, by the cost curve. *Mutates*."""
        if cost.branches < _FEW:
            return
        load, tokens = self._of(cost.branches), sum(1 + len(seen.accepted) for seen in feedback)
        load.seconds[load.guessing].append(cost.seconds / tokens)
        if load.guessing:
            load.gains.append(tokens / cost.branches * plain_seconds / cost.seconds)
        load.left -= 1
        if load.left <= 0:
            self._decide(load)

    def _of(self, branches: int) -> _Load:
        return self._loads.setdefault(branches.bit_length(), _Load())

    def _decide(self, load: _Load) -> None:
        if load.guessing and not load.trying and median(load.gains) >= _CLEAR:
            load.left = _STAY
        elif not load.trying:
            load.guessing, load.trying, load.left = not load.guessing, True, _BLOCK
        else:
            better = median(load.seconds[True]) < median(load.seconds[False])
            load.guessing, load.trying, load.left = better, False, _STAY
