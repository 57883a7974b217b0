"""One request while it is inside the engine: its tokens, its pages, and what it has used.

tokens   [0, len)            committed: the prefix and everything generated
pages    [0, resident)       KV present
         [0, borrowed)       ... in pages of the prefix cache, pinned through `node`
         [borrowed, resident)... in pages of its own
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from decoding.core import Tokens
from decoding.kv.prefix_cache import Node, TokenArray
from decoding.kv.slots import Pages


class Sequence:
    """Tokens with KV. What they are for (a generation, a reading) is the subclass's business."""

    def __init__(self, arrival: int, tokens: Tokens) -> None:
        self.arrival = arrival
        self.tokens: list[int] = list(tokens)
        self.node: Node | None = None
        self.resident = 0
        self.borrowed = 0
        self._pages: Pages = np.empty(len(tokens) + 64, dtype=np.int64)

    @property
    def reusable(self) -> int:
        """A cached prefix may cover at most this many tokens: the last one must be fed to predict the next."""
        return len(self.tokens) - 1

    @property
    def pending(self) -> int:
        """Committed tokens without KV; 1 while decoding, more while (re)filling."""
        return len(self.tokens) - self.resident

    @property
    def pages(self) -> Pages:
        """A view of the pages of tokens `[0, resident)`."""
        return self._pages[: self.resident]

    def ids(self, length: int | None = None) -> TokenArray:
        """The first `length` committed ids (all of them by default) as an array."""
        return np.array(self.tokens[:length], dtype=np.int64)

    def borrow(self, node: Node, pages: Pages) -> None:
        """The first `len(pages)` tokens now live in the cache's pages."""
        self.node = node
        self.borrowed = len(pages)
        self.resident = max(self.resident, len(pages))
        self._reserve(self.resident)
        self._pages[: len(pages)] = pages

    def append_pages(self, pages: Pages) -> None:
        """KV for the next `len(pages)` tokens is in `pages`, which are this sequence's own."""
        self._reserve(self.resident + len(pages))
        self._pages[self.resident : self.resident + len(pages)] = pages
        self.resident += len(pages)

    def forget_pages(self) -> None:
        """No KV any more; whoever calls has already dealt with the pages and the lock."""
        self.node, self.resident, self.borrowed = None, 0, 0

    def extend(self, tokens: Items[int]) -> None:
        """Commits more tokens."""
        self.tokens.extend(tokens)

    def _reserve(self, length: int) -> None:
        if length > len(self._pages):
            self._pages = np.resize(self._pages, max(length, 2 * len(self._pages)))
