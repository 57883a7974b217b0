"""Updates the n-gram table: running means of the target's distributions, and the reliability of each order."""

from __future__ import annotations

import numpy as np

from decoding.compiled import compiled
from decoding.speculation.drafters.ngram_hash_table import (
    MIN_PROBABILITY,
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

_MEMORY = 5000.0  # trials per order, salt and count bucket; older ones fade


@compiled
def update_table(
    entries: NGramEntries,
    salts_FZ: Keys,
    tails_FO: Ints,
    least: int,
    ids_FK: Ints,
    p_FK: Floats,
    stamp: int,
    hits: Counts,
    trials: Counts,
) -> int:
    """Scores the entries against the rows, then adds the rows; returns the number of new entries."""
    _score_entries(entries, salts_FZ, tails_FO, least, ids_FK, p_FK, hits, trials)
    for order in range(trials.shape[0]):
        for z in range(trials.shape[1]):
            for often in range(trials.shape[2]):
                fade = min(1.0, _MEMORY / trials[order, z, often])
                hits[order, z, often] *= fade
                trials[order, z, often] *= fade
    return _add_rows(entries, salts_FZ, tails_FO, least, ids_FK, p_FK, stamp)


@compiled
def _score_entries(
    entries: NGramEntries,
    salts_FZ: Keys,
    tails_FO: Ints,
    least: int,
    ids_FK: Ints,
    p_FK: Floats,
    hits: Counts,
    trials: Counts,
) -> None:
    """Adds to `hits` how much of each row's distribution its contexts' entries foretold, to `trials` one each."""
    for f in range(len(tails_FO)):
        for z in range(salts_FZ.shape[1]):
            key = salts_FZ[f, z]
            for order in range(tails_FO.shape[1]):
                key = extend_key(key, tails_FO[f, -1 - order])
                if not is_stored_order(order + 1, least):
                    continue
                at = find_slot(entries.key_S, key)
                if entries.count_S[at] == 0:
                    continue
                shared = 0.0
                for k in range(entries.ids_SK.shape[1]):
                    if entries.p_SK[at, k] < MIN_PROBABILITY:
                        break
                    for j in range(ids_FK.shape[1]):
                        if p_FK[f, j] < MIN_PROBABILITY:
                            break
                        if ids_FK[f, j] == entries.ids_SK[at, k]:
                            shared += min(p_FK[f, j], entries.p_SK[at, k])
                            break
                often = count_bucket(entries.count_S[at])
                hits[order, z, often] += shared
                trials[order, z, often] += 1


@compiled
def _add_rows(
    entries: NGramEntries, salts_FZ: Keys, tails_FO: Ints, least: int, ids_FK: Ints, p_FK: Floats, stamp: int
) -> int:
    """Averages each row into the entries of its context, one per stored order; returns the number of new entries."""
    new = 0
    for f in range(len(tails_FO)):
        for z in range(salts_FZ.shape[1]):
            key = salts_FZ[f, z]
            for order in range(1, tails_FO.shape[1] + 1):
                key = extend_key(key, tails_FO[f, -order])
                if is_stored_order(order, least):
                    new += _average_into(entries, key, ids_FK[f], p_FK[f], stamp)
    return new


@compiled
def _average_into(entries: NGramEntries, key: np.uint64, ids_K: Ints, p_K: Floats, stamp: int) -> int:
    """Averages one distribution, best first, into one entry; 1 if the entry is new."""
    at = find_slot(entries.key_S, key)
    new = entries.key_S[at] == np.uint64(0)
    entries.key_S[at] = key
    ids, p = entries.ids_SK[at], entries.p_SK[at]
    num_seen = entries.count_S[at]
    for k in range(len(ids)):
        if ids[k] < 0:
            break
        p[k] *= num_seen / (num_seen + 1)
    for adding in (True, False):  # all that it keeps is averaged before newcomers may take a place
        for j in range(len(ids_K)):
            share = p_K[j] / (num_seen + 1)
            if p_K[j] < MIN_PROBABILITY:
                break
            here = 0
            while here < len(ids) and ids[here] != ids_K[j] and ids[here] >= 0:
                here += 1
            if here < len(ids) and ids[here] == ids_K[j]:
                if adding:
                    p[here] += share
                    move_forward(ids, p, here)
            elif not adding and (here < len(ids) or share > p[-1]):
                here = min(here, len(ids) - 1)
                ids[here], p[here] = ids_K[j], share
                move_forward(ids, p, here)
    entries.count_S[at] = num_seen + 1
    entries.stamp_S[at] = stamp
    return 1 if new else 0
