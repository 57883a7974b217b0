"""Table of the target's averaged top probabilities after each n-gram, for many problems in bounded memory.

An entry stores the mean of the target's distribution after a context, truncated to `width` tokens, and the number of
observations; a token absent from one of two averaged distributions counts as 0 there (STAND, arXiv 2506.04708).
Entries are stored by `ngram_hash_table.py`, written by `ngram_update.py` and read by `ngram_backoff.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decoding.speculation.drafters.ngram_backoff import backoff_distributions
from decoding.speculation.drafters.ngram_hash_table import (
    ENTRY_BUCKETS,
    Counts,
    Floats,
    Int32s,
    Ints,
    Keys,
    NGramEntries,
    copy_newer,
    count_stored_orders,
)
from decoding.speculation.drafters.ngram_update import merge_entries, update_table

_MAX_LOAD = 0.6  # maximum share of used slots; beyond it probing is slow
# A prior of 1/2 with the weight of one trial: an order without trials gets half of the remaining probability.
_PRIOR_HITS, _PRIOR_TRIALS = 0.5, 1.0
_FEW_SLOTS = 1 << 16  # up to which slots are quadrupled, beyond it doubled: all entries are copied each time
_LEAST_COUNT = 0.5  # observations; an entry that has decayed below is left out


class SavedEntries(NamedTuple):
    """The entries of a table, the oldest update first, and the reliability of each order (`NGramTable.order_weights`).

    N entries with K tokens; O orders, Z salts.
    """

    key_N: Keys
    count_N: Floats
    ids_NK: Int32s
    p_NK: Floats
    hits: Counts
    trials: Counts


class NGramTable:
    """Maps contexts to distributions. Stores about `capacity` entries; when full, it evicts the older half.

    With `recent` the mean of an entry is of about so many of its last observations.
    """

    def __init__(self, *, width: int, capacity: int, orders: int, salts: int, recent: int | None = None) -> None:
        self.width, self.capacity, self.recent = width, capacity, recent
        self._hits: Counts = np.full((orders, salts, ENTRY_BUCKETS), _PRIOR_HITS)
        self._trials: Counts = np.full((orders, salts, ENTRY_BUCKETS), _PRIOR_TRIALS)
        # few, so that what enlarges a table is compiled at the first start, and not in the middle of a run
        self.entries = NGramEntries.allocate_slots(1 << 8, width)
        self._used = 0
        self._stamp = 0
        self.num_added = 0
        """Entries that were added from other tables."""
        self.increments: NGramTable | None = None
        """Learns the same observations beside this table, without what was added from other tables."""

    def __len__(self) -> int:
        return self._used

    @property
    def size_bytes(self) -> int:
        """Memory of the entries, in bytes."""
        return sum(array.nbytes for array in self.entries)

    @property
    def order_weights(self) -> Counts:
        """`[O, Z, U]`: probability that entries have predicted so far, by order, salt and `entry_bucket`."""
        return self._hits / self._trials

    def add_observations(self, salts_FZ: Keys, tails_FO: Ints, least: int, ids_FK: Ints, p_FK: Floats) -> None:
        """Averages the target's distribution after each context into its entries. *Mutates*.

        A context has one entry per stored order from `least` to O and per salt. It is given by its last O ids, the last
        one in the last column; distributions are sorted best first.
        """
        entries_each = salts_FZ.shape[1] * count_stored_orders(tails_FO.shape[1], least)
        # At most half the capacity at a time, so that evicting the older half never evicts what was just added.
        step = max(1, self.capacity // (2 * entries_each))
        recent = np.inf if self.recent is None else float(self.recent)
        for at in range(0, len(tails_FO), step):
            rows = slice(at, at + step)
            # Before the update: compiled code cannot grow the arrays that it writes to.
            self._reserve_entries(entries_each * len(tails_FO[rows]))
            self._stamp += 1
            observed = salts_FZ[rows], tails_FO[rows], least, ids_FK[rows], p_FK[rows]
            self._used += update_table(self.entries, *observed, recent, self._stamp, self._hits, self._trials)
        if self.increments is not None:
            self.increments.add_observations(salts_FZ, tails_FO, least, ids_FK, p_FK)

    def new_empty(self, capacity: int) -> NGramTable:
        """Returns an empty table of the same shape."""
        orders, salts, _ = self._trials.shape
        return NGramTable(width=self.width, capacity=capacity, orders=orders, salts=salts, recent=self.recent)

    def save_entries(self) -> SavedEntries:
        """Returns copies of all entries, the oldest update first. The prior of the reliability is not in them."""
        used = np.flatnonzero(self.entries.key_S)
        used = used[np.argsort(self.entries.stamp_S[used], kind="stable")]
        e = self.entries
        columns = e.key_S[used], e.count_S[used], e.ids_SK[used], e.p_SK[used]
        # Sums of tables would have the prior once for each; of many trials nothing is left of it.
        hits, trials = np.maximum(self._hits - _PRIOR_HITS, 0), np.maximum(self._trials - _PRIOR_TRIALS, 0)
        return SavedEntries(*columns, hits, trials)

    def add_entries(self, saved: SavedEntries, decay: float = 1.0) -> None:
        """Averages the entries of another table into this one, as if it had made `decay` times their observations.

        At most half of the capacity, the newest. *Mutates*. Raises: ValueError for a table of another shape.
        """
        self.check_shape(saved)
        rows = np.flatnonzero(saved.count_N * decay >= _LEAST_COUNT)[-(self.capacity // 2) :]
        self._reserve_entries(len(rows))
        self._stamp += 1
        ids_NK = saved.ids_NK[rows].astype(np.int64)  # the type of observations: Numba compiles for one type
        counts_N = saved.count_N[rows] * np.float32(decay)
        self._used += merge_entries(self.entries, saved.key_N[rows], counts_N, ids_NK, saved.p_NK[rows], self._stamp)
        self._hits += decay * saved.hits
        self._trials += decay * saved.trials
        self.num_added += len(rows)

    def check_shape(self, saved: SavedEntries, name: str = "the saved table") -> None:
        """Raises: ValueError for the entries of a table of another shape."""
        for what, here, there in (
            ("width", self.width, saved.ids_NK.shape[1]),
            ("number of orders", len(self._trials), len(saved.trials)),
            ("number of tables", self._trials.shape[1], saved.trials.shape[1]),
        ):
            if here != there:
                raise ValueError(f"{name} has another {what}: {there}, and this one {here}")

    def next_tokens(
        self, salts_FZ: Keys, tails_FO: Ints, least: int, *, only_longest: bool = False
    ) -> tuple[Ints, Floats, Ints]:
        """Returns ids and log-probabilities `[F, K]` after each context, best first, and trust levels `[F]`.

        The trust level is that of the longest known context, 0 where none is known. `only_longest` ignores all others.
        """
        return backoff_distributions(self.entries, salts_FZ, tails_FO, least, self.order_weights, only_longest)

    def assert_invariants(self) -> None:
        """Asserts the invariants of every entry."""
        key, _, counts, ids, p = self.entries
        used = key != 0
        assert used.sum() == self._used <= len(key) * _MAX_LOAD + 1
        assert len(np.unique(key[used])) == self._used
        assert (counts[used] > 0).all()
        assert not counts[~used].any()
        assert (p[used].sum(1) < 1 + 1e-3).all()
        assert (np.diff(p, axis=1) <= 0).all(), "best first"
        assert ((ids >= 0) >= (p > 0)).all()

    def _reserve_entries(self, num_new: int) -> None:
        """Makes room for new entries: evicts the older half at capacity, else doubles the slots. *Mutates*."""
        slots = len(self.entries.key_S)
        if self._used + num_new <= min(_MAX_LOAD * slots, self.capacity):
            return
        oldest = -1
        if self._used + num_new > self.capacity:
            stamps = self.entries.stamp_S[self.entries.key_S != 0]
            half = int(np.partition(stamps, len(stamps) // 2)[len(stamps) // 2]) if len(stamps) else -1
            oldest = min(half, self._stamp - 1)  # the latest update stays, even where all stamps are equal
        # The load counts entries before the eviction, so the table may double once more than needed; it never shrinks.
        # The latest update stays, and this one is added, also where one alone is above the capacity.
        most = max(self.capacity, 2 * num_new)
        while self._used + num_new > _MAX_LOAD * slots and slots * _MAX_LOAD < most:
            slots *= 2 if slots >= _FEW_SLOTS else 4
        new_entries = NGramEntries.allocate_slots(slots, self.width)
        self._used = copy_newer(self.entries, new_entries, oldest)
        self.entries = new_entries
