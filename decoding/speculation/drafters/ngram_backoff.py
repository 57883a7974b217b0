"""What the n-gram table says: one distribution out of the entries of a context's orders and salts."""

from __future__ import annotations

import numpy as np

from decoding.speculation.compiled import compiled
from decoding.speculation.drafters.ngram_hash_table import (
    Counts,
    Entries,
    Floats,
    Ints,
    Keys,
    extended,
    how_often,
    is_kept,
    sift,
    slot_of,
)
from decoding.speculation.drafters.source import TRUST_LEVELS

_LEAST_SAY = 0.02  # shorter contexts that would get less than this are not asked


@compiled
def blend(
    entries: Entries, salts_FZ: Keys, tails_FO: Ints, least: int, share_OZ3: Counts, only_longest: bool
) -> tuple[Ints, Floats, Ints]:
    """For each context a distribution (ids, log p: best first) and its trust level."""
    shape = len(tails_FO), entries.ids_SK.shape[1]
    ids_FK, logp_FK = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
    trust_F = np.empty(len(tails_FO), dtype=np.int64)
    for f in range(len(tails_FO)):
        trust_F[f] = blend_one(entries, salts_FZ[f], tails_FO[f], least, share_OZ3, only_longest, ids_FK[f], logp_FK[f])
    return ids_FK, logp_FK, trust_F


@compiled
def blend_one(
    entries: Entries,
    salts_Z: Keys,
    tail_O: Ints,
    least: int,
    share_OZ3: Counts,
    only_longest: bool,
    ids_K: Ints,
    logp_K: Floats,
) -> int:
    """Fills a context's distribution (best first, then -1 and -inf); its trust level."""
    orders, salts, width = len(tail_O), len(salts_Z), len(ids_K)
    slots = np.empty((orders, salts), dtype=np.int64)
    for z in range(salts):
        key = salts_Z[z]
        for order in range(orders):
            key = extended(key, tail_O[-1 - order])
            slots[order, z] = slot_of(entries.key_S, key) if is_kept(order + 1, least) else -1
    ids, p = np.empty(width * orders * salts, dtype=np.int64), np.empty(width * orders * salts, dtype=np.float32)
    left, found, trust = 1.0, 0, 0
    for order in range(orders - 1, least - 2, -1):
        for z in range(salts):
            at = slots[order, z]
            met = entries.count_S[at] if at >= 0 else 0.0
            if met == 0 or left < _LEAST_SAY:
                continue
            say = share_OZ3[order, z, how_often(met)]
            if trust == 0:
                trust = level_of(say)
            share = left if only_longest else left * say
            left -= share
            for k in range(width):
                token = entries.ids_SK[at, k]
                if token < 0:
                    break
                here = 0
                while here < found and ids[here] != token:
                    here += 1
                if here == found:
                    ids[found], p[found] = token, 0.0
                    found += 1
                p[here] += share * entries.p_SK[at, k]
                sift(ids, p, here)
    for k in range(width):
        ids_K[k] = ids[k] if k < found else -1
        logp_K[k] = np.log(p[k]) if k < found else -np.inf
    return trust


@compiled
def level_of(belief: float) -> int:
    """A belief as a trust level: bands of its logit, 0 being kept for contexts of which nothing is known."""
    some = min(max(belief, 0.01), 0.999)
    return min(max(int(np.log(some / (1 - some)) * 2 + 5), 1), TRUST_LEVELS - 1)
