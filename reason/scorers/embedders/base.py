"""Interface of a configured embedder: that of a search, and methods to check and load it."""

from __future__ import annotations

from typing import Protocol

from search.strategy import StepEmbedder


class LoadableEmbedder(StepEmbedder, Protocol):
    """Embedder made from settings; its constructor checks the knobs and loads nothing."""

    def validate(self) -> None:
        """Checks what can be checked without loading. Raises: ValueError in one sentence."""
        ...

    def load(self) -> None:
        """Loads the model if there is one; a second call does nothing. *Mutates*. Raises: ValueError."""
        ...
