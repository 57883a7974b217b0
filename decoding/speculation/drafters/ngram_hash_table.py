"""Storage of the n-gram table: entries in an open-addressing hash table of parallel arrays.

An entry belongs to a context: a salt (the problem) and the last 1, 2, ... ids. Shapes, here and in the other `ngram_*`
modules: S slots, K stored tokens, F contexts, O orders, Z salts per context, U buckets of entries.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled_in_place

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.float64]

MIN_PROBABILITY = 1e-4  # smaller probabilities are not stored
ENTRY_BUCKETS = 15
"""Buckets of entries, see `entry_bucket`, each with its own reliability."""


class NGramEntries(NamedTuple):
    """Parallel arrays of S slots, a power of two. A key of 0 marks a free slot; ids without a token are -1.

    stamp_S  number of the update that last changed the entry
    count_S  observations of the context, as float32

    All are views of one block of memory with the parts of a slot side by side, so a lookup is two cache misses.
    """

    key_S: Keys
    stamp_S: Int32s
    count_S: Floats
    ids_SK: Int32s
    p_SK: Floats

    @classmethod
    def allocate_slots(cls, slots: int, width: int) -> NGramEntries:
        """Returns empty entries with room for `width` tokens each."""
        words = 4 + 2 * width  # the key takes the first two, so it stays aligned to 8 bytes
        block = np.zeros((slots, words), dtype=np.int32)
        floats = block.view(np.float32)
        entries = cls(
            block.view(np.uint64)[:, 0], block[:, 2], floats[:, 3], block[:, 4 : 4 + width], floats[:, 4 + width :]
        )
        entries.ids_SK[:] = -1
        return entries


@compiled_in_place
def extend_key(key: np.uint64, token: np.int64) -> np.uint64:
    """Returns the key of a context that is one token longer, to the left (splitmix64's finalizer); never 0."""
    # Every operand is uint64: Numba makes float64 of a uint64 and an int. + 2, because tokens start at -1, the padding.
    x = key ^ (np.uint64(token + 2) * np.uint64(0x9E3779B97F4A7C15))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)  # odd: 0 marks free slots


@compiled_in_place
def find_slot(key_S: Keys, key: np.uint64) -> int:
    """Returns the slot of a key, or the free slot for it. Linear probing; ends because the table is never full."""
    mask = np.uint64(len(key_S) - 1)
    at = key & mask
    while key_S[at] != key and key_S[at] != np.uint64(0):
        at = (at + np.uint64(1)) & mask
    return int(np.int64(at))  # Numba makes float64 of a uint64 and an int


@compiled_in_place
def move_forward(ids: Ints | Int32s, p: Floats, at: int) -> None:
    """Moves a token whose probability rose forward to its rank. *Mutates* `ids` and `p`."""
    # Strict: of equals the earlier token stays first, so results do not depend on the number of updates.
    while at > 0 and p[at] > p[at - 1]:
        ids[at], ids[at - 1] = ids[at - 1], ids[at]
        p[at], p[at - 1] = p[at - 1], p[at]
        at -= 1


@compiled_in_place
def find_or_append(ids: Ints, p: Floats, count: int, token: int) -> int:
    """Returns where a token is among the first `count`; a new one is put behind them, with probability 0. *Mutates*."""
    at = 0
    while at < count and ids[at] != token:
        at += 1
    if at == count:
        ids[at], p[at] = token, 0.0
    return at


@compiled_in_place
def is_stored_order(order: int, least: int) -> bool:
    """Returns whether contexts of `order` ids have entries: `least`, then those of 1, 2, 3, 4, 6, 8, 12, ... above it.

    An order of 11 predicts little beyond 8 and 12, and every stored order costs a lookup at every node.
    """
    return order == least or (order > least and (order <= 4 or order == 6 or order % 4 == 0))


@cache
def count_stored_orders(orders: int, least: int) -> int:
    """Returns how many of the orders up to `orders` have entries."""
    return sum(is_stored_order(order, least) for order in range(1, 1 + orders))


@compiled_in_place
def entry_bucket(observations: float, largest: float) -> int:
    """Returns the bucket of an entry with so many observations whose likeliest token has the probability `largest`.

    Contexts that have nearly always been followed by one token predict better than their length says.
    """
    band = (largest >= 0.3) + (largest >= 0.6) + (largest >= 0.9) + (largest >= 0.98)
    return 5 * ((observations >= 2) + (observations >= 5)) + band


@compiled_in_place
def copy_newer(old: NGramEntries, new: NGramEntries, oldest: int) -> int:
    """Copies the entries with a stamp after `oldest`; returns their number. *Mutates* `new`."""
    num_copied = 0
    for s in range(len(old.key_S)):
        if old.key_S[s] != np.uint64(0) and old.stamp_S[s] > oldest:
            at = find_slot(new.key_S, old.key_S[s])  # rehashed: deleting in place would break probing chains
            new.key_S[at] = old.key_S[s]
            # one by one: the assignment of a row brings its error messages, which take seconds to compile
            for k in range(old.ids_SK.shape[1]):
                new.ids_SK[at, k], new.p_SK[at, k] = old.ids_SK[s, k], old.p_SK[s, k]
            new.count_S[at] = old.count_S[s]
            new.stamp_S[at] = old.stamp_S[s]
            num_copied += 1
    return num_copied
