"""What the target said after each n-gram: its averaged top probabilities, for many problems in one bounded table.

An entry keeps the running mean of the target's own distribution after a context, truncated to `width` tokens, and how
often it was met; a token absent from one of two distributions that are averaged counts as 0 there (STAND, arXiv
2506.04708). Entries are stored by `ngram_hash_table.py`, written by `ngram_update.py` and read by `ngram_backoff.py`.
"""

from __future__ import annotations

import numpy as np

from decoding.speculation.drafters.ngram_backoff import backoff_distributions
from decoding.speculation.drafters.ngram_hash_table import (
    Counts,
    Floats,
    Ints,
    Keys,
    NGramEntries,
    copy_newer,
    is_stored_order,
)
from decoding.speculation.drafters.ngram_update import update_table

_MAX_LOAD = 0.6  # of the slots; beyond it probing gets slow


class NGramTable:
    """At most `capacity` entries or so: when full, those not learned from for longest are forgotten, half of all."""

    def __init__(self, *, width: int, capacity: int, orders: int, salts: int) -> None:
        self.width, self.capacity = width, capacity
        self._hits = np.full((orders, salts, 3), 0.5)
        self._trials = np.ones((orders, salts, 3))
        self.entries = NGramEntries.allocate_slots(1 << 12, width)
        self._used = 0
        self._stamp = 0

    def __len__(self) -> int:
        return self._used

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.entries)

    @property
    def order_weights(self) -> Counts:
        """`[O, Z, 3]`: what entries have foretold so far, by order, salt and `how_often`."""
        return self._hits / self._trials

    def add_observations(self, salts_FZ: Keys, tails_FO: Ints, least: int, ids_FK: Ints, p_FK: Floats) -> None:
        """Averages the target's distribution after each context into that context's entries of the orders kept from
        `least` to O, under every salt. A context is its last O ids, the last one in the last column; distributions come
        best first. *Mutates*."""
        each = salts_FZ.shape[1] * sum(is_stored_order(order, least) for order in range(1, 1 + tails_FO.shape[1]))
        step = max(1, self.capacity // (2 * each))
        for at in range(0, len(tails_FO), step):
            rows = slice(at, at + step)
            self._reserve_entries(each * len(tails_FO[rows]))
            self._stamp += 1
            here = salts_FZ[rows], tails_FO[rows], least, ids_FK[rows], p_FK[rows]
            self._used += update_table(self.entries, *here, self._stamp, self._hits, self._trials)

    def next_tokens(
        self, salts_FZ: Keys, tails_FO: Ints, least: int, *, only_longest: bool = False
    ) -> tuple[Ints, Floats, Ints]:
        """What follows each context: ids and log-probabilities `[F, K]`, best first, and how far the heaviest known
        context is to be believed, as a trust level `[F]`; 0 where nothing is known.

        Longer contexts before shorter, first salt before second, each takes of what is left the share of the target's
        probability that entries like it have foretold so far.
        """
        return backoff_distributions(self.entries, salts_FZ, tails_FO, least, self.order_weights, only_longest)

    def assert_invariants(self) -> None:
        """Asserts what an entry promises."""
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
        slots = len(self.entries.key_S)
        if self._used + num_new <= min(_MAX_LOAD * slots, self.capacity):
            return
        oldest = -1
        if self._used + num_new > self.capacity:
            stamps = self.entries.stamp_S[self.entries.key_S != 0]
            half = int(np.partition(stamps, len(stamps) // 2)[len(stamps) // 2]) if len(stamps) else -1
            oldest = min(half, self._stamp - 1)  # what was learned last stays: a step is half the capacity at most
        while self._used + num_new > _MAX_LOAD * slots and slots * _MAX_LOAD < self.capacity:
            slots *= 2
        fresh = NGramEntries.allocate_slots(slots, self.width)
        self._used = copy_newer(self.entries, fresh, oldest)
        self.entries = fresh
