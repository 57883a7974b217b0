"""Selects children from a source's distribution: with the target's noise, the most likely, or at random.

Shapes: B branches, F contexts, K candidates, W maximum children.
"""

from __future__ import annotations

import numpy as np

from decoding.compiled import compiled, compiled_in_place
from decoding.noise import exponential_of_token, gumbel_of_token
from decoding.speculation.draft import DraftSampling
from decoding.speculation.drafters.source import Floats, Ints

LIKELY, COUPLED, WITHOUT_REPLACEMENT, IID = range(4)
SAMPLING_CODES: dict[DraftSampling, int] = {
    "likely": LIKELY,
    "coupled": COUPLED,
    "without_replacement": WITHOUT_REPLACEMENT,
    "iid": IID,
}


@compiled_in_place
def filter_probabilities(
    logp_K: Floats, temperature: float, top_k: int, top_p: float, min_p: float, q_K: Floats
) -> int:
    """Fills `q_K` with the distribution after temperature and filters; returns the number of remaining candidates.

    At temperature 0 all candidates remain, as at 1: the target's most likely token may be the source's second.
    """
    num_candidates, total = 0, 0.0
    for k in range(len(logp_K)):
        if logp_K[k] == -np.inf or (temperature > 0 and top_k > 0 and k >= top_k):
            break  # candidates are sorted: -inf is padding from here on
        # Relative to the best, so that a low temperature does not underflow all of them to 0.
        q_K[k] = np.exp((logp_K[k] - logp_K[0]) / (temperature if temperature > 0 else 1.0))
        total += q_K[k]
        num_candidates += 1
    mass = 0.0
    for k in range(num_candidates):
        # `mass` is that of the better candidates: the one that crosses top_p remains, as in `decoding.sampler`.
        if temperature > 0 and k > 0 and (mass >= top_p * total or q_K[k] < min_p * q_K[0]):
            num_candidates = k
            break
        mass += q_K[k]
    for k in range(len(q_K)):
        q_K[k] = q_K[k] / mass if k < num_candidates else 0.0
    return num_candidates


@compiled
def select_children(
    kind: int,
    ids_K: Ints,
    q_K: Floats,
    num_candidates: int,
    cold: bool,
    key: np.int32,
    other: np.int32,
    ids_W: Ints,
    chance_W: Floats,
) -> int:
    """Fills the children in the order drawn and their estimated acceptance probabilities; returns their count.

    num_candidates  candidates of `ids_K` and `q_K` that remain after the filters
    cold            whether the target takes its most likely token (temperature 0)
    key, other      the noise key of the children's position: the target's for `coupled`, otherwise a fresh one
    """
    width = len(ids_W)
    if kind == IID:
        for w in range(width if num_candidates > 0 else 0):
            best, highest = 0, -np.inf
            for k in range(num_candidates):
                # Fresh noise for every draw: the number of the draw takes the place of the token id.
                score = np.log(q_K[k]) + gumbel_of_token(key, other, w * len(ids_K) + k)
                if score > highest:  # strict, as argmax: of equals the first
                    best, highest = k, score
            ids_W[w], chance_W[w] = ids_K[best], q_K[best]
        return width if num_candidates > 0 else 0
    if kind == LIKELY:
        for w in range(min(width, num_candidates)):
            ids_W[w], chance_W[w] = ids_K[w], q_K[w]
        return min(width, num_candidates)
    # The W largest of log q + g are a sample without replacement (Gumbel top-k). They are the W largest of q / e, where
    # g = -log e. In float64, as `gumbel_of_token`.
    scores, total = np.empty(num_candidates), 0.0
    for k in range(num_candidates):
        # The noise of the token id, not of the rank k: the target has no ranks.
        scores[k] = q_K[k] / (1.0 if cold and kind == COUPLED else exponential_of_token(key, other, ids_K[k]))
        total += scores[k]
    for w in range(min(width, num_candidates)):
        best = int(np.argmax(scores))  # the first of equals: the better candidate
        ids_W[w] = ids_K[best]
        chance_W[w] = scores[best] / total if kind == COUPLED else q_K[best]
        scores[best] = -1.0  # without replacement
    return min(width, num_candidates)
