"""What the target said after each n-gram: its averaged top probabilities, for many problems in one bounded table.

An entry belongs to a context: a salt (the problem) and the last 1, 2, ... ids. It keeps the running mean of the
target's own distribution, truncated to `width` tokens, and how often it was met; a token absent from one of two
distributions that are averaged counts as 0 there (STAND, arXiv 2506.04708).

Entries live in an open-addressing hash table of parallel arrays. Shapes: S slots, K kept tokens, F contexts,
O orders, the salts asked per context.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.drafters.source import TRUST_LEVELS

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.float64]

_TRACE = 1e-4  # probabilities below this are not worth an entry's room
_LEAST_SAY = 0.02  # shorter contexts that would get less than this are not asked
_MEMORY = 5000.0  # judgements of a kind of context that count; older ones fade
_FULL = 0.6  # of the slots; beyond it probing gets slow


class Entries(NamedTuple):
    """Parallel arrays of S slots (a power of two). A key of 0 marks a free slot; ids are -1 where nothing is kept.

    All are views of one block of memory with a slot's parts side by side: looking at an entry is two cache misses.
    """

    key_S: Keys
    stamp_S: Any  # int32
    count_S: Floats
    ids_SK: Any  # int32
    p_SK: Floats

    @classmethod
    def empty(cls, slots: int, width: int) -> Entries:
        words = 4 + 2 * width
        block = np.zeros((slots, words), dtype=np.int32)
        floats = block.view(np.float32)
        entries = cls(
            block.view(np.uint64)[:, 0], block[:, 2], floats[:, 3], block[:, 4 : 4 + width], floats[:, 4 + width :]
        )
        entries.ids_SK[:] = -1
        return entries


@compiled
def extended(key: np.uint64, token: np.int64) -> np.uint64:
    """The key of a context one token longer (to the left): splitmix64's finalizer over both. Never 0."""
    x = key ^ (np.uint64(token + 2) * np.uint64(0x9E3779B97F4A7C15))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)


@compiled
def _slot(key_S: Keys, key: np.uint64) -> int:
    """The slot of a key, or the free slot where it would go."""
    mask = np.uint64(len(key_S) - 1)
    at = key & mask
    while key_S[at] != key and key_S[at] != np.uint64(0):
        at = (at + np.uint64(1)) & mask
    return int(at)


@compiled
def _average(entries: Entries, key: np.uint64, ids_K: Ints, p_K: Floats, stamp: int) -> int:
    """Averages one distribution, best first, into one entry; 1 if the entry is new."""
    at = _slot(entries.key_S, key)
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
            if p_K[j] < _TRACE:
                break
            here = 0
            while here < len(ids) and ids[here] != ids_K[j] and ids[here] >= 0:
                here += 1
            if here < len(ids) and ids[here] == ids_K[j]:
                if adding:
                    p[here] += share
                    _sift(ids, p, here)
            elif not adding and (here < len(ids) or share > p[-1]):
                here = min(here, len(ids) - 1)
                ids[here], p[here] = ids_K[j], share
                _sift(ids, p, here)
    entries.count_S[at] = met + 1
    entries.stamp_S[at] = stamp
    return 1 if new else 0


@compiled
def _sift(ids: Ints, p: Floats, at: int) -> None:
    """Moves a kept token forward to its place, best first."""
    while at > 0 and p[at] > p[at - 1]:
        ids[at], ids[at - 1] = ids[at - 1], ids[at]
        p[at], p[at - 1] = p[at - 1], p[at]
        at -= 1


@compiled
def _kept(order: int, least: int) -> bool:
    """Whether contexts of so many ids have entries: `least`, then what follows of 1, 2, 3, 4, 6, 8, 12, ... A context
    of 11 says little that 8 and 12 do not, and an entry is looked at for every order at every node."""
    return order == least or (order > least and (order <= 4 or order == 6 or order % 4 == 0))


@compiled
def _often(met: float) -> int:
    """How often an entry was met, in three kinds."""
    return (1 if met >= 2 else 0) + (1 if met >= 5 else 0)


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
                if not _kept(order + 1, least):
                    continue
                at = _slot(entries.key_S, key)
                if entries.count_S[at] == 0:
                    continue
                shared = 0.0
                for k in range(entries.ids_SK.shape[1]):
                    if entries.p_SK[at, k] < _TRACE:
                        break
                    for j in range(ids_FK.shape[1]):
                        if p_FK[f, j] < _TRACE:
                            break
                        if ids_FK[f, j] == entries.ids_SK[at, k]:
                            shared += min(p_FK[f, j], entries.p_SK[at, k])
                            break
                often = _often(entries.count_S[at])
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
                if _kept(order, least):
                    new += _average(entries, key, ids_FK[f], p_FK[f], stamp)
    return new


@compiled
def _study(
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
def _level(belief: float) -> int:
    """A belief as a trust level: bands of its logit, 0 being kept for contexts of which nothing is known."""
    some = min(max(belief, 0.01), 0.999)
    return min(max(int(np.log(some / (1 - some)) * 2 + 5), 1), TRUST_LEVELS - 1)


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
            slots[order, z] = _slot(entries.key_S, key) if _kept(order + 1, least) else -1
    ids, p = np.empty(width * orders * salts, dtype=np.int64), np.empty(width * orders * salts, dtype=np.float32)
    left, found, trust = 1.0, 0, 0
    for order in range(orders - 1, least - 2, -1):
        for z in range(salts):
            at = slots[order, z]
            met = entries.count_S[at] if at >= 0 else 0.0
            if met == 0 or left < _LEAST_SAY:
                continue
            say = share_OZ3[order, z, _often(met)]
            if trust == 0:
                trust = _level(say)
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
                _sift(ids, p, here)
    for k in range(width):
        ids_K[k] = ids[k] if k < found else -1
        logp_K[k] = np.log(p[k]) if k < found else -np.inf
    return trust


@compiled
def _blend(
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
def _move(old: Entries, new: Entries, oldest: int) -> int:
    """Copies the entries stamped after `oldest`; how many."""
    moved = 0
    for s in range(len(old.key_S)):
        if old.key_S[s] != np.uint64(0) and old.stamp_S[s] > oldest:
            at = _slot(new.key_S, old.key_S[s])
            new.key_S[at] = old.key_S[s]
            new.ids_SK[at] = old.ids_SK[s]
            new.p_SK[at] = old.p_SK[s]
            new.count_S[at] = old.count_S[s]
            new.stamp_S[at] = old.stamp_S[s]
            moved += 1
    return moved


class NGramTable:
    """At most `capacity` entries or so: when full, those not learned from for longest are forgotten, half of all."""

    def __init__(self, *, width: int, capacity: int, orders: int, salts: int) -> None:
        self.width, self.capacity = width, capacity
        self._right = np.full((orders, salts, 3), 0.5)
        self._tried = np.ones((orders, salts, 3))
        self.entries = Entries.empty(1 << 12, width)
        self._used = 0
        self._stamp = 0

    def __len__(self) -> int:
        return self._used

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.entries)

    @property
    def shares(self) -> Counts:
        """`[O, Z, 3]`: what entries have foretold so far, by order, salt and `_often`."""
        return self._right / self._tried

    def learn(self, salts_FZ: Keys, tails_FO: Ints, least: int, ids_FK: Ints, p_FK: Floats) -> None:
        """Averages the target's distribution after each context into that context's entries of the orders kept from
        `least` to O, under every salt. A context is its last O ids, the last one in the last column; distributions come
        best first. *Mutates*."""
        each = salts_FZ.shape[1] * sum(_kept(order, least) for order in range(1, 1 + tails_FO.shape[1]))
        step = max(1, self.capacity // (2 * each))
        for at in range(0, len(tails_FO), step):
            rows = slice(at, at + step)
            self._make_room(each * len(tails_FO[rows]))
            self._stamp += 1
            here = salts_FZ[rows], tails_FO[rows], least, ids_FK[rows], p_FK[rows]
            self._used += _study(self.entries, *here, self._stamp, self._right, self._tried)

    def blend(
        self, salts_FZ: Keys, tails_FO: Ints, least: int, *, only_longest: bool = False
    ) -> tuple[Ints, Floats, Ints]:
        """What follows each context: ids and log-probabilities `[F, K]`, best first, and how far the heaviest known
        context is to be believed, as a trust level `[F]`; 0 where nothing is known.

        Longer contexts before shorter, first salt before second, each takes of what is left the share of the target's
        probability that entries like it have foretold so far.
        """
        return _blend(self.entries, salts_FZ, tails_FO, least, self.shares, only_longest)

    def check(self) -> None:
        """Asserts what an entry promises."""
        key, _, counts, ids, p = self.entries
        used = key != 0
        assert used.sum() == self._used <= len(key) * _FULL + 1
        assert len(np.unique(key[used])) == self._used
        assert (counts[used] > 0).all()
        assert not counts[~used].any()
        assert (p[used].sum(1) < 1 + 1e-3).all()
        assert (np.diff(p, axis=1) <= 0).all(), "best first"
        assert ((ids >= 0) >= (p > 0)).all()

    def _make_room(self, wanted: int) -> None:
        slots = len(self.entries.key_S)
        if self._used + wanted <= min(_FULL * slots, self.capacity):
            return
        oldest = -1
        if self._used + wanted > self.capacity:
            stamps = self.entries.stamp_S[self.entries.key_S != 0]
            half = int(np.partition(stamps, len(stamps) // 2)[len(stamps) // 2]) if len(stamps) else -1
            oldest = min(half, self._stamp - 1)  # what was learned last stays: a step is half the capacity at most
        while self._used + wanted > _FULL * slots and slots * _FULL < self.capacity:
            slots *= 2
        fresh = Entries.empty(slots, self.width)
        self._used = _move(self.entries, fresh, oldest)
        self.entries = fresh
