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

from decoding.compiled import compiled, compiled_in_place
from decoding.speculation.drafters.request_acceptance import OffsetRows, RequestAcceptance, move_offsets
from decoding.speculation.drafters.source import TRUST_LEVELS, Ints
from decoding.speculation.interfaces import Feedback

Counts = npt.NDArray[np.float64]

_RANKS = 4
_BANDS = 12
NUM_BUCKETS = TRUST_LEVELS * _RANKS * _BANDS
_PRIOR = 4.0  # weight of the estimate, in trials
_MAX_PROBABILITY = 0.995  # below 1, so that a child is less likely than its parent


@compiled_in_place
def calibration_bucket(trust: int, rank: int, chance: float) -> int:
    """Returns the bucket of a draft token with estimated probability `chance`."""
    clipped = min(max(chance, 1e-4), 1 - 1e-4)  # a finite logit
    # int() truncates towards 0; the lower bound of 0 makes that the same as floor.
    band = min(max(int(np.log(clipped / (1 - clipped)) + 6), 0), _BANDS - 1)
    return (trust * _RANKS + min(rank, _RANKS - 1)) * _BANDS + band


@compiled_in_place
def calibrated_probability(hits: Counts, trials: Counts, bucket: int, chance: float) -> float:
    """Returns the calibrated probability of a draft token of this bucket with estimated probability `chance`."""
    return min(float((hits[bucket] + _PRIOR * chance) / (trials[bucket] + _PRIOR)), _MAX_PROBABILITY)


@compiled_in_place
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
        self.trials, self.hits = np.zeros(NUM_BUCKETS), np.zeros(NUM_BUCKETS)

    def observe_round(self, feedback: Sequence[Feedback]) -> None:
        """Adds the outcomes of drafts with labels, for all and for each request. *Mutates*."""
        rows = self.requests.open_rows([outcome.branch for outcome in feedback])
        _count_drafts(_list_drafted(feedback), rows, self.hits, self.trials, self.memory)

    def observe(self, buckets_N: Ints, accepted_N: npt.NDArray[np.bool_]) -> None:
        """Adds the outcomes of N draft tokens, for all requests. *Mutates*."""
        _count_outcomes(buckets_N, accepted_N, self.hits, self.trials, self.memory)


class _DraftedNodes(NamedTuple):
    """All M nodes of several drafts, and the accepted ones; parents and accepted nodes count within their draft."""

    sizes_B: Ints
    parent_M: Ints
    label_M: Ints
    path_probability_M: Counts
    num_accepted_B: Ints
    accepted_A: Ints


def _list_drafted(feedback: Sequence[Feedback]) -> _DraftedNodes:
    columns = [outcome.draft.columns for outcome in feedback]
    tokens, parents, labels, probabilities = zip(*columns, strict=True)
    accepted = [outcome.accepted_nodes for outcome in feedback]
    return _DraftedNodes(
        np.array([len(one) for one in tokens], dtype=np.int64),
        np.concatenate(parents),
        np.concatenate(labels),
        np.concatenate(probabilities),
        np.array([len(one) for one in accepted], dtype=np.int64),
        np.array([*chain.from_iterable(accepted)], dtype=np.int64),
    )


@compiled
def _count_drafts(drafted: _DraftedNodes, rows: OffsetRows, hits: Counts, trials: Counts, memory: float) -> None:
    """Adds the outcomes of drafts, as `AcceptanceCalibration.observe_round`. *Mutates* all but the nodes."""
    label_N, is_accepted_N, expected_N, branch_N = _select_tried(drafted)
    move_offsets(rows, branch_N, label_N // (_RANKS * _BANDS), expected_N, is_accepted_N)
    _count_outcomes(label_N, is_accepted_N, hits, trials, memory)


@compiled
def _count_outcomes(
    buckets_N: Ints, accepted_N: npt.NDArray[np.bool_], hits: Counts, trials: Counts, memory: float
) -> None:
    """Adds outcomes to the counts of their buckets, whose older ones decay. *Mutates* `hits` and `trials`."""
    new_trials, new_hits = np.zeros(len(trials)), np.zeros(len(hits))
    for n in range(len(buckets_N)):
        new_trials[buckets_N[n]] += 1
        new_hits[buckets_N[n]] += accepted_N[n]
    for bucket in range(len(trials)):
        if new_trials[bucket] > 0:
            decay = 0.5 ** (new_trials[bucket] / memory)
            trials[bucket] = trials[bucket] * decay + new_trials[bucket]
            hits[bucket] = hits[bucket] * decay + new_hits[bucket]


class NodeOutcomes(NamedTuple):
    """Outcomes of the N nodes of several drafts whose parents were accepted: those below a rejected one were not tried.

    expected_N  probability with which the node was drafted, given its parent
    branch_N    whose draft it is in, ascending
    """

    label_N: Ints
    is_accepted_N: npt.NDArray[np.bool_]
    expected_N: Counts
    branch_N: Ints


def find_outcomes(feedback: Sequence[Feedback]) -> NodeOutcomes:
    """Returns the outcomes of the nodes that were tried, draft by draft."""
    return NodeOutcomes(*_select_tried(_list_drafted(feedback)))


@compiled
def _select_tried(drafted: _DraftedNodes) -> tuple[Ints, npt.NDArray[np.bool_], Counts, Ints]:
    """Returns the fields of `NodeOutcomes`."""
    sizes_B, parent_M, label_M, path_probability_M, num_accepted_B, accepted_A = drafted
    is_accepted_M = np.zeros(len(parent_M), dtype=np.bool_)
    tried, expected, branch = np.empty_like(label_M), np.empty_like(path_probability_M), np.empty_like(label_M)
    count = first = at = 0
    for b in range(len(sizes_B)):
        for a in range(at, at + num_accepted_B[b]):
            is_accepted_M[first + accepted_A[a]] = True
        for node in range(first, first + sizes_B[b]):
            above, is_root = first + parent_M[node], parent_M[node] < 0  # the root is always accepted
            if is_root or is_accepted_M[above]:
                probability_above = 1.0 if is_root else max(path_probability_M[above], 1e-30)
                expected[count] = min(path_probability_M[node] / probability_above, 1.0)
                tried[count], branch[count] = node, b
                count += 1
        first, at = first + sizes_B[b], at + num_accepted_B[b]
    tried = tried[:count]
    return label_M[tried], is_accepted_M[tried], expected[:count], branch[:count]
