"""Finds the likeliest tokens in a row of logits, for compiled loops."""

from __future__ import annotations

import numpy as np

from decoding.compiled import compiled_in_place
from decoding.model.panel_products import Ints
from decoding.model.panels import Floats
from decoding.selection_kernels import count_trailing_zeros, find_lane_maxima, mask_at_least
from decoding.speculation.drafters.model_drafts import HeadIds
from decoding.vector_emitter import LANES
from decoding.vector_kernels import exponentiate

_LEAST = np.finfo(np.float32).min  # no logit of -inf is that of a candidate


@compiled_in_place
def select_top(
    logits: Floats, at: int, count: int, head_ids: HeadIds, lanes: Floats, ids_K: Ints, logp_K: Floats
) -> None:
    """Sets the likeliest tokens of a row, best first, and their log-probabilities.

    *Mutates* its logits and up to 16 numbers after them: the next row must be read before; and 16 numbers of `lanes`.
    Ids below 0 of `head_ids` are no tokens, but have their share of the probability.
    """
    num_kept, largest = 0, np.float32(-np.inf)
    least = max(_find_bound(logits, at, head_ids.num_whole, lanes, len(ids_K)), _LEAST)
    for k in range(len(ids_K)):
        ids_K[k], logp_K[k] = -1, -np.inf
    for first in range(0, count, LANES):
        mask = mask_at_least(logits, at + first, count - first, least)
        while mask:
            i = first + count_trailing_zeros(mask)
            mask &= mask - 1
            logit = logits[at + i]
            if head_ids.ids_V[i] < 0:
                largest = max(largest, logit)
                continue
            if num_kept == len(ids_K) and not logit > logp_K[num_kept - 1]:  # of equals the first stays
                continue
            num_kept = min(num_kept + 1, len(ids_K))
            k = num_kept - 1
            while k > 0 and logp_K[k - 1] < logit:
                ids_K[k], logp_K[k] = ids_K[k - 1], logp_K[k - 1]
                k -= 1
            ids_K[k], logp_K[k] = head_ids.ids_V[i], logit
            if num_kept == len(ids_K):
                least = max(least, logp_K[num_kept - 1])
    largest = max(largest, logp_K[0])
    log_sum = largest + np.float32(np.log(exponentiate(logits, at, count)))
    for k in range(num_kept):
        logp_K[k] -= log_sum


@compiled_in_place
def _find_bound(logits: Floats, at: int, count: int, lanes: Floats, k: int) -> np.float32:
    """Returns a number that `k` of the first `count` logits, all of them of tokens, are not below; -inf for k > 16."""
    if k > LANES or count < LANES:
        return np.float32(-np.inf)
    find_lane_maxima(logits, at, count, lanes)
    for lane in range(1, LANES):
        value, place = lanes[lane], lane
        while place > 0 and lanes[place - 1] < value:
            lanes[place] = lanes[place - 1]
            place -= 1
        lanes[place] = value
    bound: np.float32 = lanes[k - 1]
    return bound
