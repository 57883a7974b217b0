"""Picks children from a source's distribution: with the target's own noise, the likeliest, or at random.

Shapes: B branches, F contexts, K candidates, W children at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoding.noise import gumbel_of
from decoding.speculation.compiled import compiled
from decoding.speculation.drafters.source import Floats, Ints
from decoding.speculation.interfaces import Branch, DrawKind

LIKELY, COUPLED, WITHOUT_REPLACEMENT, IID = range(4)
CODES: dict[DrawKind, int] = {
    "likely": LIKELY,
    "coupled": COUPLED,
    "without_replacement": WITHOUT_REPLACEMENT,
    "iid": IID,
}


class Sampling(NamedTuple):
    """How the target will sample: the requests' parameters, a row for each branch."""

    temperature_B: Floats
    top_k_B: Ints
    top_p_B: Floats
    min_p_B: Floats

    @classmethod
    def of(cls, branches: Sequence[Branch]) -> Sampling:
        params = [branch.params for branch in branches]
        return cls(
            np.array([p.temperature for p in params], dtype=np.float32),
            np.array([p.top_k for p in params], dtype=np.int64),
            np.array([p.top_p for p in params], dtype=np.float32),
            np.array([p.min_p for p in params], dtype=np.float32),
        )


@compiled
def temper(logp_K: Floats, temperature: float, top_k: int, top_p: float, min_p: float, q_K: Floats) -> int:
    """Fills `q` with the distribution after temperature and filters; how many candidates are left, best first.

    At temperature 0 all stay, as at 1: the runner-up may be what the target thinks best, and order is all that counts.
    """
    kept, total = 0, 0.0
    for k in range(len(logp_K)):
        if logp_K[k] == -np.inf or (temperature > 0 and top_k > 0 and k >= top_k):
            break
        q_K[k] = np.exp((logp_K[k] - logp_K[0]) / (temperature if temperature > 0 else 1.0))
        total += q_K[k]
        kept += 1
    mass = 0.0
    for k in range(kept):
        if temperature > 0 and k > 0 and (mass >= top_p * total or q_K[k] < min_p * q_K[0]):
            kept = k
            break
        mass += q_K[k]
    for k in range(len(q_K)):
        q_K[k] = q_K[k] / mass if k < kept else 0.0
    return kept


@compiled
def draw(
    kind: int,
    ids_K: Ints,
    q_K: Floats,
    kept: int,
    cold: bool,
    key: np.int32,
    other: np.int32,
    ids_W: Ints,
    chance_W: Floats,
) -> int:
    """Fills children in the order drawn, and a first guess of each one's chance to be what the target says; how many.

    kept        of `ids` and `q`, the candidates that are left
    cold        the target takes its likeliest token
    key, other  the noise key of the children's position: the target's own for `coupled`, else a fresh one
    """
    width = len(ids_W)
    if kind == IID:
        for w in range(width if kept > 0 else 0):
            best, highest = 0, -np.inf
            for k in range(kept):
                # a fresh race for every draw: its number stands where the token id would
                score = np.log(q_K[k]) + gumbel_of(key, other, w * len(ids_K) + k)
                if score > highest:
                    best, highest = k, score
            ids_W[w], chance_W[w] = ids_K[best], q_K[best]
        return width if kept > 0 else 0
    if kind == LIKELY:
        for w in range(min(width, kept)):
            ids_W[w], chance_W[w] = ids_K[w], q_K[w]
        return min(width, kept)
    scores = np.empty(kept)
    for k in range(kept):
        scores[k] = np.log(q_K[k]) + (0.0 if cold and kind == COUPLED else gumbel_of(key, other, ids_K[k]))
    highest, total = scores[:kept].max() if kept > 0 else 0.0, 0.0
    for k in range(kept if kind == COUPLED else 0):
        total += np.exp(scores[k] - highest)
    for w in range(min(width, kept)):
        best = int(np.argmax(scores))
        ids_W[w] = ids_K[best]
        chance_W[w] = np.exp(scores[best] - highest) / total if kind == COUPLED else q_K[best]
        scores[best] = -np.inf
    return min(width, kept)
