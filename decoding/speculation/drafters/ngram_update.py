"""What the n-gram table learns: the running mean of the target's own distributions, and how far to believe it."""

from __future__ import annotations

import numpy as np

from decoding.speculation.compiled import compiled
from decoding.speculation.drafters.ngram_hash_table import (
    TRACE,
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

_MEMORY = 5000.0  # judgements of a kind of context that count; older ones fade


@compiled
def study(
    entries: Entries,
    salts_FZ: Keys,
    tails_FO: Ints,
    least: int,
    ids_FK: Ints,
    p_FK: Floats,
    stamp: int,
    right: Counts,
    tried: Counts,
) -> int:
    """Judges the entries by the rows, then learns the rows; how many entries are new."""
    _judge(entries, salts_FZ, tails_FO, least, ids_FK, p_FK, right, tried)
    for order in range(tried.shape[0]):
        for z in range(tried.shape[1]):
            for often in range(tried.shape[2]):
                fade = min(1.0, _MEMORY / tried[order, z, often])
                right[order, z, often] *= fade
                tried[order, z, often] *= fade
    return _learn(entries, salts_FZ, tails_FO, least, ids_FK, p_FK, stamp)


@compiled
def _judge(
    entries: Entries,
    salts_FZ: Keys,
    tails_FO: Ints,
    least: int,
    ids_FK: Ints,
    p_FK: Floats,
    right: Counts,
    tried: Counts,
) -> None:
    """Adds to `right` how much of each row's distribution its contexts' entries foretold, to `tried` one each."""
    for f in range(len(tails_FO)):
        for z in range(salts_FZ.shape[1]):
            key = salts_FZ[f, z]
            for order in range(tails_FO.shape[1]):
                key = extended(key, tails_FO[f, -1 - order])
                if not is_kept(order + 1, least):
                    continue
                at = slot_of(entries.key_S, key)
                if entries.count_S[at] == 0:
                    continue
                shared = 0.0
                for k in range(entries.ids_SK.shape[1]):
                    if entries.p_SK[at, k] < TRACE:
                        break
                    for j in range(ids_FK.shape[1]):
                        if p_FK[f, j] < TRACE:
                            break
                        if ids_FK[f, j] == entries.ids_SK[at, k]:
                            shared += min(p_FK[f, j], entries.p_SK[at, k])
                            break
                often = how_often(entries.count_S[at])
                right[order, z, often] += shared
                tried[order, z, often] += 1


@compiled
def _learn(entries: Entries, salts_FZ: Keys, tails_FO: Ints, least: int, ids_FK: Ints, p_FK: Floats, stamp: int) -> int:
    """Averages each row into its context's entries of every order kept from `least` up; how many entries are new."""
    new = 0
    for f in range(len(tails_FO)):
        for z in range(salts_FZ.shape[1]):
            key = salts_FZ[f, z]
            for order in range(1, tails_FO.shape[1] + 1):
                key = extended(key, tails_FO[f, -order])
                if is_kept(order, least):
                    new += _average(entries, key, ids_FK[f], p_FK[f], stamp)
    return new


@compiled
def _average(entries: Entries, key: np.uint64, ids_K: Ints, p_K: Floats, stamp: int) -> int:
    """Averages one distribution, best first, into one entry; 1 if the entry is new."""
    at = slot_of(entries.key_S, key)
    new = entries.key_S[at] == np.uint64(0)
    entries.key_S[at] = key
    ids, p = entries.ids_SK[at], entries.p_SK[at]
    met = entries.count_S[at]
    for k in range(len(ids)):
        if ids[k] < 0:
            break
        p[k] *= met / (met + 1)
    for adding in (True, False):  # all that it keeps is averaged before newcomers may take a place
        for j in range(len(ids_K)):
            share = p_K[j] / (met + 1)
            if p_K[j] < TRACE:
                break
            here = 0
            while here < len(ids) and ids[here] != ids_K[j] and ids[here] >= 0:
                here += 1
            if here < len(ids) and ids[here] == ids_K[j]:
                if adding:
                    p[here] += share
                    sift(ids, p, here)
            elif not adding and (here < len(ids) or share > p[-1]):
                here = min(here, len(ids) - 1)
                ids[here], p[here] = ids_K[j], share
                sift(ids, p, here)
    entries.count_S[at] = met + 1
    entries.stamp_S[at] = stamp
    return 1 if new else 0
