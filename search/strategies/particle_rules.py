"""Formulas of particle methods: weights from scores, effective sample size, systematic resampling. Pure."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import accumulate

from search.voting import fill_unscored

WEIGHTS = ("odds", "likelihood")

_LOWEST, _HIGHEST = sys.float_info.min, 1 - 1e-7
"""Scores beyond these count as these, so that every weight has a finite logarithm."""


def log_weights(scores: Sequence[float | None], weights: str) -> list[float]:
    """Returns the logarithm of the weight of each score; one that is missing has the median of the others, or 0.

    odds        score / (1 - score): the reward model's logit, as published (arXiv 2502.01618)
    likelihood  the score itself, as the probability that the path is right

    >>> [round(w, 3) for w in log_weights([0.5, None, 0.9, 0.8], "odds")]
    [0.0, 1.386, 2.197, 1.386]
    """
    limited = [None if score is None else min(max(score, _LOWEST), _HIGHEST) for score in scores]
    logs = [s if s is None else math.log(s) - (math.log1p(-s) if weights == "odds" else 0.0) for s in limited]
    return fill_unscored(logs)


def normalise_weights(logs: Sequence[float], temperature: float) -> list[float]:
    """Returns softmax(log weight / temperature): the share of each particle."""
    highest = max(logs)  # subtracted, so that a low temperature cannot overflow `exp`
    weights = [math.exp((log - highest) / temperature) for log in logs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def effective_sample_size(shares: Sequence[float]) -> float:
    """Returns 1 / sum of the squared shares: from 1, where one particle has all, to their number (Kong et al. 1994)."""
    return 1 / math.fsum(share * share for share in shares)


def resample_systematically(shares: Sequence[float], count: int, offset: float) -> list[int]:
    """Distributes `count` copies over particles, less than one away from `count * share` each (Kitagawa 1996).

    Particles get as many copies as points (i + offset) / count fall on them, where they lie behind each other on [0, 1)
    with their shares as lengths. With a uniform `offset` in [0, 1) the expectation is `count * share`.

    >>> [resample_systematically([0.5, 0.375, 0.125], 4, offset) for offset in (0.1, 0.6)]
    [[2, 2, 0], [2, 1, 1]]
    """
    ends = list(accumulate(shares))
    # points before the end of each particle; all are before the last end, also where `count - offset` is rounded
    below = [math.ceil(count * (end / ends[-1]) - offset) if end < ends[-1] else count for end in ends]
    return [after - before for before, after in zip([0, *below], below, strict=False)]
