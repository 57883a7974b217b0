"""Calibrates the acceptance probability of draft tokens from counts, bucket by bucket.

The bucket of a draft token is the trust level of its context, its rank among its siblings and its estimated probability
(in bands of the logit). Buckets with few trials give a probability near the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.speculation.drafters.source import TRUST_LEVELS, Ints

Counts = npt.NDArray[np.float64]

_RANKS = 4
_BANDS = 12
_PRIOR = 4.0  # weight of the estimate, in trials
_MAX_PROBABILITY = 0.995  # below 1, so that a child is less likely than its parent


@compiled
def calibration_bucket(trust: int, rank: int, chance: float) -> int:
    """Returns the bucket of a draft token with estimated probability `chance`."""
    clipped = min(max(chance, 1e-4), 1 - 1e-4)  # a finite logit
    # int() truncates towards 0; the lower bound of 0 makes that the same as floor.
    band = min(max(int(np.log(clipped / (1 - clipped)) + 6), 0), _BANDS - 1)
    return (trust * _RANKS + min(rank, _RANKS - 1)) * _BANDS + band


@compiled
def calibrated_probability(hits: Counts, trials: Counts, bucket: int, chance: float) -> float:
    """Returns the calibrated probability of a draft token of this bucket with estimated probability `chance`."""
    return min(float((hits[bucket] + _PRIOR * chance) / (trials[bucket] + _PRIOR)), _MAX_PROBABILITY)


@dataclass
class AcceptanceCalibration:
    """Counts draft tokens whose parent was accepted (trials), and those accepted themselves (hits).

    memory   number of trials of a bucket after which older ones have half their weight
    """

    memory: float = 2000.0
    trials: Counts = field(init=False, repr=False)
    hits: Counts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        buckets = TRUST_LEVELS * _RANKS * _BANDS
        self.trials, self.hits = np.zeros(buckets), np.zeros(buckets)

    def observe(self, buckets_N: Ints, accepted_N: npt.NDArray[np.bool_]) -> None:
        """Adds the outcomes of N draft tokens. *Mutates*."""
        # `bincount`, because `trials[buckets] += 1` would count a repeated bucket once.
        new_trials = np.bincount(buckets_N, minlength=len(self.trials))
        decay = 0.5 ** (new_trials / self.memory)
        self.trials *= decay
        self.trials += new_trials
        self.hits *= decay
        self.hits += np.bincount(buckets_N, accepted_N, minlength=len(self.hits))
