"""The pool of KV pages: which are free and which are held.

A page holds the K and V of ONE token. A search forks at any token and a verified draft keeps some rows and
returns others, so with one token per page sharing is exact, nothing is ever copied on a fork, and a
rejected row is a page given back. (Larger pages save table space, which matters at a scale we are not at.)

Page 0 is scratch: padding reads and writes it, nobody owns it. This file holds page numbers, no tensors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pages = npt.NDArray[np.int64]
SCRATCH = 0
NO_PAGES: Pages = np.empty(0, dtype=np.int64)


class OutOfPages(RuntimeError):
    """More pages were asked for than are free. The scheduler's arithmetic should make this impossible."""


class PagePool:
    """Page numbers 1..capacity. Taking and giving back is a copy of a slice, whatever the number of pages.

    >>> pool = PagePool(4)
    >>> taken = pool.take(3); taken.tolist(), pool.free
    ([1, 2, 3], 1)
    >>> pool.give(taken[1:]); pool.free
    3
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a page pool needs at least one page, got {capacity}")
        self.capacity = capacity
        self._held = np.zeros(capacity + 1, dtype=bool)
        self._refill()

    @classmethod
    def of_bytes(cls, budget_bytes: int, page_bytes: int) -> PagePool:
        """As many pages as fit in the budget, scratch page included. Raises ValueError if that is none."""
        pages = budget_bytes // page_bytes - 1
        if pages < 1:
            raise ValueError(
                f"a KV budget of {budget_bytes:,} bytes holds no page: one token takes {page_bytes:,} bytes "
                "and one page is scratch"
            )
        return cls(int(pages))

    def _refill(self) -> None:
        # Taken from the end: descending order here makes fresh runs ascending and contiguous,
        # and a contiguous prefix is read in place by attention instead of gathered.
        self._stack: Pages = np.flatnonzero(~self._held)[:0:-1].astype(np.int64)
        self._stack = np.concatenate([self._stack, np.empty(self.capacity - len(self._stack), dtype=np.int64)])
        self.free = int(self.capacity - self._held.sum())

    @property
    def held(self) -> int:
        """Pages somebody owns."""
        return self.capacity - self.free

    def take(self, count: int) -> Pages:
        """`count` pages, now held by the caller. Raises OutOfPages."""
        if count > self.free:
            raise OutOfPages(f"{count} pages wanted, {self.free} of {self.capacity} free")
        self.free -= count
        pages = self._stack[self.free : self.free + count][::-1].copy()
        self._held[pages] = True
        return pages

    def give(self, pages: Pages) -> None:
        """Takes pages back. Giving a page twice is a broken invariant, not a caller's mistake."""
        assert self._held[pages].all(), "page given back twice"
        self._held[pages] = False
        self._stack[self.free : self.free + len(pages)] = pages[::-1]
        self.free += len(pages)

    def keep_only(self, pages: Pages) -> None:
        """Frees everything except `pages`: how an engine recovers after a round that broke half-way."""
        self._held[:] = False
        self._held[pages] = True
        self._refill()

    def check(self) -> None:
        """Asserts that every page is either free once or held, and that scratch is neither."""
        free = self._stack[: self.free]
        assert not self._held[SCRATCH]
        assert (free != SCRATCH).all()
        assert not self._held[free].any(), "a free page is held"
        assert len(np.unique(free)) == self.free, "a page is free twice"
        assert self.free + int(self._held.sum()) == self.capacity, "pages have leaked"
