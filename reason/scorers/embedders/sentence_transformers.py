"""Embeds the text of steps with a sentence-transformers model; works with any engine."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from decoding.core import Vector
from reason.scorers.embedders.measured_threshold import MeasuredThreshold
from search.tree import Step


class SentenceTransformerEmbedder(MeasuredThreshold):
    """Embeds the text of a step, without the steps before it.

    path         a folder or hub id in the sentence-transformers format
    device       `auto` leaves the choice to the library
    measured_on  the `path` of the encoder that the threshold belongs to
    """

    needs_hidden_states = False

    def __init__(
        self, *, path: str, distance_threshold: float, measured_on: str | None = None, device: str = "auto"
    ) -> None:
        super().__init__(distance_threshold=distance_threshold, measured_on=measured_on)
        self.path = path
        self.device = device
        self._model: Any = None
        self._lock = threading.Lock()

    def find_measured_path(self, model_path: str) -> str:
        """Returns the path of the encoder, whatever model writes the steps."""
        return self.path

    def validate(self) -> None:
        """Raises: ValueError if the library is not installed."""
        if importlib.util.find_spec("sentence_transformers") is None:
            raise ValueError("embedder=sentence_transformers needs the sentence-transformers package: pip install it")

    def load(self) -> None:
        """Loads the model, once. *Mutates*. Raises: ValueError naming the path."""
        from sentence_transformers import SentenceTransformer

        from reason.models.loading import hidden_progress_bars

        with self._lock:
            if self._model is None:
                device = None if self.device == "auto" else self.device
                try:
                    with hidden_progress_bars():
                        self._model = SentenceTransformer(self.path, device=device)
                except OSError as error:
                    raise ValueError(f"path={self.path}: {str(error).splitlines()[0]}") from error

    async def embed(self, steps: Sequence[Step], hidden: Sequence[Vector | None]) -> Vector:
        """See `search.strategy.StepEmbedder`."""
        return await asyncio.to_thread(self._encode, [step.text for step in steps])

    def _encode(self, texts: list[str]) -> Vector:
        self.load()
        with self._lock:
            return np.asarray(self._model.encode(texts, show_progress_bar=False), dtype=np.float32)
