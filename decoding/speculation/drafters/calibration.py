"""How often guesses like this one came true: estimated acceptance from counts, kind by kind.

A guess's kind is its context's trust level, its rank among its siblings and its chance as first estimated
(in bands of the logit). Kinds that were seldom tried lean on that first estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from decoding.speculation.compiled import compiled
from decoding.speculation.drafters.source import TRUST_LEVELS, Ints

Counts = npt.NDArray[np.float64]

_RANKS = 4
_BANDS = 12
_PRIOR = 4.0  # trials the first estimate is worth
_MOST = 0.995  # nothing is certain, and a child is never likelier than its parent


@compiled
def kind_of(trust: int, rank: int, chance: float) -> int:
    """The kind of a guess."""
    some = min(max(chance, 1e-4), 1 - 1e-4)
    band = min(max(int(np.log(some / (1 - some)) + 6), 0), _BANDS - 1)
    return (trust * _RANKS + min(rank, _RANKS - 1)) * _BANDS + band


@compiled
def calibrated(hits: Counts, trials: Counts, kind: int, chance: float) -> float:
    """The probability of a guess of this kind, at first put at `chance`."""
    return min(float((hits[kind] + _PRIOR * chance) / (trials[kind] + _PRIOR)), _MOST)


@dataclass
class Calibration:
    """Counts of guesses whose parent was reached, and of those that came true.

    memory   trials of a kind after which the older ones count half
    """

    memory: float = 2000.0
    trials: Counts = field(init=False, repr=False)
    hits: Counts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kinds = TRUST_LEVELS * _RANKS * _BANDS
        self.trials, self.hits = np.zeros(kinds), np.zeros(kinds)

    def observe(self, kinds_N: Ints, came_true_N: npt.NDArray[np.bool_]) -> None:
        """*Mutates*."""
        tried = np.bincount(kinds_N, minlength=len(self.trials))
        keep = 0.5 ** (tried / self.memory)
        self.trials *= keep
        self.trials += tried
        self.hits *= keep
        self.hits += np.bincount(kinds_N, came_true_N, minlength=len(self.hits))
