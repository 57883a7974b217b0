"""Combines the n-gram table's entries of all orders and salts of a context into one distribution."""

from __future__ import annotations

import numpy as np

from decoding.compiled import compiled, compiled_in_place
from decoding.speculation.drafters.ngram_hash_table import (
    Counts,
    Floats,
    Ints,
    Keys,
    NGramEntries,
    entry_bucket,
    extend_key,
    find_or_append,
    find_slot,
    is_stored_order,
    move_forward,
)
from decoding.speculation.drafters.source import TRUST_LEVELS

_MIN_SHARE = 0.02  # entries that would get a smaller share of the probability are skipped


@compiled
def backoff_distributions(
    entries: NGramEntries, salts_FZ: Keys, tails_FO: Ints, least: int, share_OZU: Counts, only_longest: bool
) -> tuple[Ints, Floats, Ints]:
    """Returns for each context its distribution (ids and log-probabilities, best first) and its trust level."""
    shape = len(tails_FO), entries.ids_SK.shape[1]
    ids_FK, logp_FK = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
    trust_F = np.empty(len(tails_FO), dtype=np.int64)
    # The rows of the results are filled in place: no array per context is returned and copied.
    for f in range(len(tails_FO)):
        trust_F[f] = backoff_distribution(
            entries, salts_FZ[f], tails_FO[f], least, share_OZU, only_longest, ids_FK[f], logp_FK[f]
        )
    return ids_FK, logp_FK, trust_F


@compiled
def backoff_distribution(
    entries: NGramEntries,
    salts_Z: Keys,
    tail_O: Ints,
    least: int,
    share_OZU: Counts,
    only_longest: bool,
    ids_K: Ints,
    logp_K: Floats,
) -> int:
    """Fills the distribution of a context (best first, then -1 and -inf); returns its trust level.

    Entries of longer contexts come first, at equal length those of the first salt. Each takes from the remaining
    probability the share that entries of its order, salt and bucket have predicted so far.
    """
    orders, salts, width = len(tail_O), len(salts_Z), len(ids_K)
    # uninitialised: of both only what is written is read
    key_OZ = np.empty((orders, salts), dtype=np.uint64)
    ids, p = np.empty(width * orders * salts, dtype=np.int64), np.empty(width * orders * salts, dtype=np.float32)
    for z in range(salts):
        key = salts_Z[z]
        # The key of every order extends that of the order below, so keys are hashed from the last token leftwards.
        for order in range(orders):
            key = extend_key(key, tail_O[-1 - order])
            key_OZ[order, z] = key
    remaining, num_ids, trust = 1.0, 0, 0
    for order in range(orders - 1, least - 2, -1):
        if not is_stored_order(order + 1, least):
            continue
        for z in range(salts):
            if remaining < _MIN_SHARE:
                break
            at = find_slot(entries.key_S, key_OZ[order, z])
            observations = entries.count_S[at]
            # A slot whose count is 0 is free: the key was not found.
            if observations == 0:
                continue
            weight = share_OZU[order, z, entry_bucket(observations, entries.p_SK[at, 0])]
            if trust == 0:  # of the longest known context only
                trust = trust_level(weight)
            share = remaining if only_longest else remaining * weight
            remaining -= share
            for k in range(width):
                token = entries.ids_SK[at, k]
                if token < 0:
                    break  # ids are packed: -1 from here on
                index = find_or_append(ids, p, num_ids, token)
                num_ids = max(num_ids, index + 1)
                # Sorted after every addition, so that equal sums stay in the order of their first entry.
                p[index] += share * entries.p_SK[at, k]
                move_forward(ids, p, index)
    for k in range(width):
        ids_K[k] = ids[k] if k < num_ids else -1
        logp_K[k] = np.log(p[k]) if k < num_ids else -np.inf
    return trust


@compiled_in_place
def trust_level(weight: float) -> int:
    """Returns the trust level of a weight: bands of its logit; level 0 is for contexts without entries."""
    clipped = min(max(weight, 0.01), 0.999)  # a finite logit
    # int() truncates towards 0; the lower bound of 1 makes that the same as floor.
    return min(max(int(np.log(clipped / (1 - clipped)) * 2 + 5), 1), TRUST_LEVELS - 1)
