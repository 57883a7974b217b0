"""Selects children from a source's distribution: with the target's noise, the most likely, or at random.

Shapes: B branches, F contexts, K candidates, W maximum children.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoding.compiled import compiled
from decoding.noise import gumbel_of_token
from decoding.speculation.draft import DraftSampling
from decoding.speculation.drafters.source import Floats, Ints
from decoding.speculation.interfaces import Branch

LIKELY, COUPLED, WITHOUT_REPLACEMENT, IID = range(4)
SAMPLING_CODES: dict[DraftSampling, int] = {
    "likely": LIKELY,
    "coupled": COUPLED,
    "without_replacement": WITHOUT_REPLACEMENT,
    "iid": IID,
}


class BranchSampling(NamedTuple):
    """Sampling parameters of the requests, a row for each branch; a named tuple because Numba takes no dataclass."""

    temperature_B: Floats
    top_k_B: Ints
    top_p_B: Floats
    min_p_B: Floats

    @classmethod
    def from_branches(cls, branches: Sequence[Branch]) -> BranchSampling:
        params = [branch.params for branch in branches]
        return cls(
            np.array([p.temperature for p in params], dtype=np.float32),
            np.array([p.top_k for p in params], dtype=np.int64),
            np.array([p.top_p for p in params], dtype=np.float32),
            np.array([p.min_p for p in params], dtype=np.float32),
        )


@compiled
def filter_probabilities(
    logp_K: Floats, temperature: float, top_k: int, top_p: float, min_p: float, q_K: Floats
) -> int:
    """Fills `q_K` with the distribution after temperature and filters; returns how many candidates are left.

    At temperature 0 all stay, as at 1: the second may be the target's most likely token, and only the order counts.
    """
    num_kept, total = 0, 0.0
    for k in range(len(logp_K)):
        if logp_K[k] == -np.inf or (temperature > 0 and top_k > 0 and k >= top_k):
            break  # candidates are sorted: -inf is padding from here on
        q_K[k] = np.exp((logp_K[k] - logp_K[0]) / (temperature if temperature > 0 else 1.0))
        total += q_K[k]
        num_kept += 1
    mass = 0.0
    for k in range(num_kept):
        # `mass` is that of the better candidates: the one that crosses top_p stays, as in `decoding.sampler`.
        if temperature > 0 and k > 0 and (mass >= top_p * total or q_K[k] < min_p * q_K[0]):
            num_kept = k
            break
        mass += q_K[k]
    for k in range(len(q_K)):
        q_K[k] = q_K[k] / mass if k < num_kept else 0.0
    return num_kept


@compiled
def select_children(
    kind: int,
    ids_K: Ints,
    q_K: Floats,
    num_kept: int,
    cold: bool,
    key: np.int32,
    other: np.int32,
    ids_W: Ints,
    chance_W: Floats,
) -> int:
    """Fills the children in the order drawn and their estimated acceptance probabilities; returns their count.

    num_kept    candidates left of `ids_K` and `q_K`
    cold        the target takes its most likely token
    key, other  the noise key of the children's position: the target's own for `coupled`, else a fresh one
    """
    width = len(ids_W)
    if kind == IID:
        for w in range(width if num_kept > 0 else 0):
            best, highest = 0, -np.inf
            for k in range(num_kept):
                # Fresh noise for every draw: its number stands where the token id would.
                score = np.log(q_K[k]) + gumbel_of_token(key, other, w * len(ids_K) + k)
                if score > highest:
                    best, highest = k, score
            ids_W[w], chance_W[w] = ids_K[best], q_K[best]
        return width if num_kept > 0 else 0
    if kind == LIKELY:
        for w in range(min(width, num_kept)):
            ids_W[w], chance_W[w] = ids_K[w], q_K[w]
        return min(width, num_kept)
    # The W largest of log q + g are a sample without replacement (Gumbel top-k).
    scores = np.empty(num_kept)
    for k in range(num_kept):
        scores[k] = np.log(q_K[k]) + (0.0 if cold and kind == COUPLED else gumbel_of_token(key, other, ids_K[k]))
    highest, total = scores[:num_kept].max() if num_kept > 0 else 0.0, 0.0
    for k in range(num_kept if kind == COUPLED else 0):
        total += np.exp(scores[k] - highest)
    for w in range(min(width, num_kept)):
        best = int(np.argmax(scores))
        ids_W[w] = ids_K[best]
        chance_W[w] = np.exp(scores[best] - highest) / total if kind == COUPLED else q_K[best]
        scores[best] = -np.inf
    return min(width, num_kept)
