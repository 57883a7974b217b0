"""What a configured embedder is, besides what search sees of it."""

from __future__ import annotations

from typing import Protocol

from search import strategy as base


class Embedder(base.Embedder, Protocol):
    """Made from a config in microseconds; its constructor checks the knobs and loads nothing."""

    def check(self) -> None:
        """Finds out what can be known without loading. Raises: ValueError in one sentence."""
        ...

    def load(self) -> None:
        """Loads whatever is needed, once. *Mutates*. Raises: ValueError."""
        ...
