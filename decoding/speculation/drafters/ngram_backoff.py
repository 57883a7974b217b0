"""Combines the n-gram table's entries of all orders and salts of a context into one distribution."""

from __future__ import annotations

import numpy as np

from decoding.compiled import compiled
from decoding.speculation.drafters.ngram_hash_table import (
    Counts,
    Floats,
    Ints,
    Keys,
    NGramEntries,
    count_bucket,
    extend_key,
    find_slot,
    is_stored_order,
    move_forward,
)
from decoding.speculation.drafters.source import TRUST_LEVELS

_MIN_SHARE = 0.02  # contexts that would get less than this are not looked up


@compiled
def backoff_distributions(
    entries: NGramEntries, salts_FZ: Keys, tails_FO: Ints, least: int, share_OZ3: Counts, only_longest: bool
) -> tuple[Ints, Floats, Ints]:
    """Returns for each context a distribution (ids, log p: best first) and its trust level."""
    shape = len(tails_FO), entries.ids_SK.shape[1]
    ids_FK, logp_FK = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
    trust_F = np.empty(len(tails_FO), dtype=np.int64)
    for f in range(len(tails_FO)):
        trust_F[f] = backoff_distribution(
            entries, salts_FZ[f], tails_FO[f], least, share_OZ3, only_longest, ids_FK[f], logp_FK[f]
        )
    return ids_FK, logp_FK, trust_F


@compiled
def backoff_distribution(
    entries: NGramEntries,
    salts_Z: Keys,
    tail_O: Ints,
    least: int,
    share_OZ3: Counts,
    only_longest: bool,
    ids_K: Ints,
    logp_K: Floats,
) -> int:
    """Fills a context's distribution (best first, then -1 and -inf); returns its trust level."""
    orders, salts, width = len(tail_O), len(salts_Z), len(ids_K)
    slots = np.empty((orders, salts), dtype=np.int64)
    for z in range(salts):
        key = salts_Z[z]
        for order in range(orders):
            key = extend_key(key, tail_O[-1 - order])
            slots[order, z] = find_slot(entries.key_S, key) if is_stored_order(order + 1, least) else -1
    ids, p = np.empty(width * orders * salts, dtype=np.int64), np.empty(width * orders * salts, dtype=np.float32)
    remaining, num_ids, trust = 1.0, 0, 0
    for order in range(orders - 1, least - 2, -1):
        for z in range(salts):
            at = slots[order, z]
            num_seen = entries.count_S[at] if at >= 0 else 0.0
            if num_seen == 0 or remaining < _MIN_SHARE:
                continue
            weight = share_OZ3[order, z, count_bucket(num_seen)]
            if trust == 0:
                trust = trust_level(weight)
            share = remaining if only_longest else remaining * weight
            remaining -= share
            for k in range(width):
                token = entries.ids_SK[at, k]
                if token < 0:
                    break
                index = 0
                while index < num_ids and ids[index] != token:
                    index += 1
                if index == num_ids:
                    ids[num_ids], p[num_ids] = token, 0.0
                    num_ids += 1
                p[index] += share * entries.p_SK[at, k]
                move_forward(ids, p, index)
    for k in range(width):
        ids_K[k] = ids[k] if k < num_ids else -1
        logp_K[k] = np.log(p[k]) if k < num_ids else -np.inf
    return trust


@compiled
def trust_level(belief: float) -> int:
    """Returns a weight's trust level: bands of its logit; 0 is for contexts without entries."""
    some = min(max(belief, 0.01), 0.999)
    return min(max(int(np.log(some / (1 - some)) * 2 + 5), 1), TRUST_LEVELS - 1)
