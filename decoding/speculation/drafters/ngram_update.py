"""Updates the n-gram table: running means of the target's distributions, and the reliability of each order."""

from __future__ import annotations

import numpy as np

from decoding.compiled import compiled, compiled_in_place
from decoding.speculation.drafters.ngram_hash_table import (
    MIN_PROBABILITY,
    Counts,
    Floats,
    Ints,
    Keys,
    NGramEntries,
    entry_bucket,
    extend_key,
    find_slot,
    is_stored_order,
    move_forward,
)

_MEMORY = 5000.0  # weight of the trials per order, salt and bucket; older ones decay


@compiled
def update_table(
    entries: NGramEntries,
    salts_FZ: Keys,
    tails_FO: Ints,
    least: int,
    ids_FK: Ints,
    p_FK: Floats,
    recent: float,
    stamp: int,
    hits: Counts,
    trials: Counts,
) -> int:
    """Scores the entries against the rows, then adds the rows; returns the number of new entries.

    A row has the weight of one in `recent` at least in the mean of an entry.
    """
    shape = salts_FZ.shape[0], salts_FZ.shape[1], tails_FO.shape[1]
    key_FZO, slot_FZO = np.empty(shape, dtype=np.uint64), np.empty(shape, dtype=np.int64)
    _find_entries(entries, salts_FZ, tails_FO, least, key_FZO, slot_FZO)
    # Scores first: entries that already contain a row would predict it.
    _score_entries(entries, slot_FZO, ids_FK, p_FK, hits, trials)
    for order in range(trials.shape[0]):
        for z in range(trials.shape[1]):
            for bucket in range(trials.shape[2]):
                decay = min(1.0, _MEMORY / trials[order, z, bucket])
                hits[order, z, bucket] *= decay
                trials[order, z, bucket] *= decay
    return _add_rows(entries, key_FZO, slot_FZO, ids_FK, p_FK, recent, stamp)


@compiled_in_place
def _find_entries(
    entries: NGramEntries, salts_FZ: Keys, tails_FO: Ints, least: int, key_FZO: Keys, slot_FZO: Ints
) -> None:
    """Fills in the key of each row's context of each order, and its slot, or the free one for it; -1: not stored."""
    for f in range(len(tails_FO)):
        for z in range(salts_FZ.shape[1]):
            key = salts_FZ[f, z]
            for order in range(tails_FO.shape[1]):
                key = extend_key(key, tails_FO[f, -1 - order])
                key_FZO[f, z, order] = key
                # after `extend_key`: longer keys are built on this one
                slot_FZO[f, z, order] = find_slot(entries.key_S, key) if is_stored_order(order + 1, least) else -1


@compiled_in_place
def _score_entries(
    entries: NGramEntries, slot_FZO: Ints, ids_FK: Ints, p_FK: Floats, hits: Counts, trials: Counts
) -> None:
    """Adds to `hits` the probability that each entry shares with its row, to `trials` 1 for each entry. *Mutates*."""
    for f in range(slot_FZO.shape[0]):
        for z in range(slot_FZO.shape[1]):
            for order in range(slot_FZO.shape[2]):
                at = slot_FZO[f, z, order]
                if at < 0 or entries.count_S[at] == 0:
                    continue
                shared = 0.0
                for k in range(entries.ids_SK.shape[1]):
                    if entries.p_SK[at, k] < MIN_PROBABILITY:
                        break  # sorted best first, as the row
                    for j in range(ids_FK.shape[1]):
                        if p_FK[f, j] < MIN_PROBABILITY:
                            break
                        if ids_FK[f, j] == entries.ids_SK[at, k]:
                            shared += min(p_FK[f, j], entries.p_SK[at, k])
                            break
                bucket = entry_bucket(entries.count_S[at], entries.p_SK[at, 0])
                hits[order, z, bucket] += shared
                trials[order, z, bucket] += 1


@compiled_in_place
def _add_rows(
    entries: NGramEntries, key_FZO: Keys, slot_FZO: Ints, ids_FK: Ints, p_FK: Floats, recent: float, stamp: int
) -> int:
    """Averages each row into the entries of its context, one per stored order; returns the number of new entries."""
    new = 0
    for f in range(slot_FZO.shape[0]):
        for z in range(slot_FZO.shape[1]):
            for order in range(slot_FZO.shape[2]):
                at, key = slot_FZO[f, z, order], key_FZO[f, z, order]
                if at < 0:
                    continue
                if entries.key_S[at] != key and entries.key_S[at] != np.uint64(0):
                    at = find_slot(entries.key_S, key)  # an earlier row has taken the free slot
                new += _average_into(entries, at, key, ids_FK[f], p_FK[f], 1.0, recent, stamp)
    return new


@compiled_in_place
def merge_entries(entries: NGramEntries, key_N: Keys, count_N: Floats, ids_NK: Ints, p_NK: Floats, stamp: int) -> int:
    """Averages the entries of another table into this one by their observations; returns the number of new ones."""
    new = 0
    for n in range(len(key_N)):
        at = find_slot(entries.key_S, key_N[n])
        new += _average_into(entries, at, key_N[n], ids_NK[n], p_NK[n], count_N[n], np.inf, stamp)
    return new


@compiled_in_place
def _average_into(
    entries: NGramEntries,
    at: int,
    key: np.uint64,
    ids_K: Ints,
    p_K: Floats,
    weight: float,
    recent: float,
    stamp: int,
) -> int:
    """Averages a distribution, best first, of `weight` observations into the entry at a slot; returns 1 if it is new.

    Its share of the mean is one in `recent` at least. *Mutates* `entries`.
    """
    new = entries.key_S[at] == np.uint64(0)
    entries.key_S[at] = key
    ids, p = entries.ids_SK[at], entries.p_SK[at]  # views: writes go to the table
    observations = min(entries.count_S[at], recent - weight)
    for k in range(len(ids)):
        if ids[k] < 0:
            break
        p[k] *= observations / (observations + weight)
    # Two passes: stored tokens get their share before new ones may replace the last of them.
    for updates_stored in (True, False):
        for j in range(len(ids_K)):
            share = p_K[j] * weight / (observations + weight)
            if p_K[j] < MIN_PROBABILITY:
                break
            index = 0
            while index < len(ids) and ids[index] != ids_K[j] and ids[index] >= 0:
                index += 1
            if index < len(ids) and ids[index] == ids_K[j]:
                if updates_stored:
                    p[index] += share
                    move_forward(ids, p, index)
            elif not updates_stored and (index < len(ids) or share > p[-1]):  # strict: of equals the stored one stays
                index = min(index, len(ids) - 1)
                ids[index], p[index] = ids_K[j], share
                move_forward(ids, p, index)
    entries.count_S[at] += weight
    entries.stamp_S[at] = stamp
    return 1 if new else 0
