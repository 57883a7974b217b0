"""Calibrates the acceptance probability of draft tokens from counts, bucket by bucket.

The bucket of a draft token is the trust level of its context, its rank among its siblings and its estimated probability
(in bands of the logit). Buckets with few trials give a probability near the estimate. All requests share the buckets;
how a request differs from the others is for `RequestAcceptance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.speculation.drafters.request_acceptance import RequestAcceptance
from decoding.speculation.drafters.source import TRUST_LEVELS, Ints
from decoding.speculation.interfaces import Feedback

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


@compiled
def request_probability(hits: Counts, trials: Counts, bucket: int, chance: float, odds_L: Counts) -> float:
    """Returns the calibrated probability for a request with such odds: see `RequestAcceptance.odds_of`."""
    probability = calibrated_probability(hits, trials, bucket, chance)
    odds = odds_L[bucket // (_RANKS * _BANDS)]
    return min(float(probability * odds / (1 - probability + probability * odds)), _MAX_PROBABILITY)


@dataclass
class AcceptanceCalibration:
    """Counts draft tokens whose parent was accepted (trials), and those accepted themselves (hits).

    memory    number of trials of a bucket after which older ones have half their weight
    requests  how each request differs from the others
    """

    memory: float = 2000.0
    requests: RequestAcceptance = field(default_factory=RequestAcceptance, repr=False)
    trials: Counts = field(init=False, repr=False)
    hits: Counts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        buckets = TRUST_LEVELS * _RANKS * _BANDS
        self.trials, self.hits = np.zeros(buckets), np.zeros(buckets)

    def observe_round(self, feedback: Sequence[Feedback]) -> None:
        """Adds the outcomes of drafts with labels, for all and for each request. *Mutates*."""
        nodes = node_outcomes(feedback)
        # Nodes below a rejected one were not tried: they are no trials of their bucket.
        buckets_N, accepted_N = nodes.labels[nodes.is_reached], nodes.is_accepted[nodes.is_reached]
        self.requests.observe(
            [outcome.branch for outcome in feedback],
            nodes.branch[nodes.is_reached],
            buckets_N // (_RANKS * _BANDS),
            nodes.expected[nodes.is_reached],
            accepted_N,
        )
        self.observe(buckets_N, accepted_N)

    def observe(self, buckets_N: Ints, accepted_N: npt.NDArray[np.bool_]) -> None:
        """Adds the outcomes of N draft tokens, for all requests. *Mutates*."""
        # `bincount`, because `trials[buckets] += 1` would count a repeated bucket once.
        new_trials = np.bincount(buckets_N, minlength=len(self.trials))
        decay = 0.5 ** (new_trials / self.memory)
        self.trials *= decay
        self.trials += new_trials
        self.hits *= decay
        self.hits += np.bincount(buckets_N, accepted_N, minlength=len(self.hits))


class NodeOutcomes(NamedTuple):
    """Outcomes of the nodes of several drafts: arrays `[N]`.

    is_reached   whether the parent was accepted
    expected     probability with which the node was drafted, given its parent
    branch       whose draft it is in
    """

    is_reached: npt.NDArray[np.bool_]
    is_accepted: npt.NDArray[np.bool_]
    labels: Ints
    expected: Counts
    branch: Ints


def node_outcomes(feedback: Sequence[Feedback]) -> NodeOutcomes:
    """Returns the outcomes of all nodes, draft by draft."""
    drafts = [outcome.draft for outcome in feedback]
    sizes = np.array([len(draft.tokens) for draft in drafts])
    first, branch = np.cumsum(sizes) - sizes, np.repeat(np.arange(len(sizes)), sizes)
    is_accepted = np.zeros(int(sizes.sum()), dtype=bool)
    starts = zip(first.tolist(), feedback, strict=True)
    is_accepted[[start + node for start, outcome in starts for node in outcome.accepted_nodes]] = True
    parent = np.array(list(chain.from_iterable(draft.parents for draft in drafts)))
    labels = np.array(list(chain.from_iterable(draft.labels for draft in drafts)))
    path_probability = np.array(list(chain.from_iterable(draft.path_probabilities for draft in drafts)))
    # Parents count within their draft, so the draft's first node is added; the root (-1) is always reached.
    parent_index = np.maximum(parent, 0) + first[branch]
    is_reached = (parent < 0) | is_accepted[parent_index]
    above = np.where(parent < 0, 1.0, np.maximum(path_probability[parent_index], 1e-30))
    return NodeOutcomes(is_reached, is_accepted, labels, np.minimum(path_probability / above, 1.0), branch)
