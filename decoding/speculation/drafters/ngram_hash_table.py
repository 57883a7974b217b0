"""Storage of the n-gram table: entries in an open-addressing hash table of parallel arrays.

An entry belongs to a context: a salt (the problem) and the last 1, 2, ... ids. Shapes, here and in the other `ngram_*`
modules: S slots, K stored tokens, F contexts, O orders, Z salts per context.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.float64]

MIN_PROBABILITY = 1e-4  # probabilities below this are not worth an entry's room


class NGramEntries(NamedTuple):
    """Parallel arrays of S slots (a power of two). A key of 0 marks a free slot; ids are -1 where nothing is kept.

    All are views of one block of memory with a slot's parts side by side: looking at an entry is two cache misses.
    """

    key_S: Keys
    stamp_S: Any  # int32
    count_S: Floats
    ids_SK: Any  # int32
    p_SK: Floats

    @classmethod
    def allocate_slots(cls, slots: int, width: int) -> NGramEntries:
        words = 4 + 2 * width
        block = np.zeros((slots, words), dtype=np.int32)
        floats = block.view(np.float32)
        entries = cls(
            block.view(np.uint64)[:, 0], block[:, 2], floats[:, 3], block[:, 4 : 4 + width], floats[:, 4 + width :]
        )
        entries.ids_SK[:] = -1
        return entries


@compiled
def extend_key(key: np.uint64, token: np.int64) -> np.uint64:
    """The key of a context one token longer (to the left): splitmix64's finalizer over both. Never 0."""
    x = key ^ (np.uint64(token + 2) * np.uint64(0x9E3779B97F4A7C15))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)


@compiled
def find_slot(key_S: Keys, key: np.uint64) -> int:
    """The slot of a key, or the free slot where it would go."""
    mask = np.uint64(len(key_S) - 1)
    at = key & mask
    while key_S[at] != key and key_S[at] != np.uint64(0):
        at = (at + np.uint64(1)) & mask
    return int(at)


@compiled
def move_forward(ids: Ints, p: Floats, at: int) -> None:
    """Moves a kept token forward to its place, best first."""
    while at > 0 and p[at] > p[at - 1]:
        ids[at], ids[at - 1] = ids[at - 1], ids[at]
        p[at], p[at - 1] = p[at - 1], p[at]
        at -= 1


@compiled
def is_stored_order(order: int, least: int) -> bool:
    """Whether contexts of so many ids have entries: `least`, then what follows of 1, 2, 3, 4, 6, 8, 12, ... A context
    of 11 says little that 8 and 12 do not, and an entry is looked at for every order at every node."""
    return order == least or (order > least and (order <= 4 or order == 6 or order % 4 == 0))


@compiled
def count_bucket(num_seen: float) -> int:
    """How often an entry was num_seen, in three kinds."""
    return (1 if num_seen >= 2 else 0) + (1 if num_seen >= 5 else 0)


@compiled
def copy_newer(old: NGramEntries, new: NGramEntries, oldest: int) -> int:
    """Copies the entries stamped after `oldest`; how many."""
    moved = 0
    for s in range(len(old.key_S)):
        if old.key_S[s] != np.uint64(0) and old.stamp_S[s] > oldest:
            at = find_slot(new.key_S, old.key_S[s])
            new.key_S[at] = old.key_S[s]
            new.ids_SK[at] = old.ids_SK[s]
            new.p_SK[at] = old.p_SK[s]
            new.count_S[at] = old.count_S[s]
            new.stamp_S[at] = old.stamp_S[s]
            moved += 1
    return moved
