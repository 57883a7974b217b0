"""Any sentence-transformers model as embedder: reads a step's text, whatever engine wrote it."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from decoding.core import Vector
from decoding.validation import require_positive
from search.tree import Step


class SentenceTransformers:
    """Embeds the text of a step, without what came before it.

    path   a folder or hub id in the sentence-transformers format
    cut    cosine distance below which two steps say the same; `scripts/bench/calibrate.py` measures it for a model
    """

    wants_hidden = False

    def __init__(self, *, path: str, cut: float, device: str = "auto") -> None:
        require_positive("cut", cut)
        self.path = path
        self.cut = float(cut)
        self.device = device
        self._model: Any = None
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raises: ValueError if the library is not installed."""
        if importlib.util.find_spec("sentence_transformers") is None:
            raise ValueError("embedder=sentence_transformers needs the sentence-transformers package: pip install it")

    def load(self) -> None:
        """Loads the model, once. *Mutates*. Raises: ValueError naming the path."""
        from sentence_transformers import SentenceTransformer

        with self._lock:
            if self._model is None:
                device = None if self.device == "auto" else self.device
                try:
                    self._model = SentenceTransformer(self.path, device=device)
                except OSError as error:
                    raise ValueError(f"path={self.path}: {str(error).splitlines()[0]}") from error

    async def embed(self, steps: Sequence[Step], hidden: Sequence[Vector | None]) -> Vector:
        """See `search.strategy.Embedder`."""
        return await asyncio.to_thread(self._encode, [step.text for step in steps])

    def _encode(self, texts: list[str]) -> Vector:
        self.load()
        with self._lock:
            return np.asarray(self._model.encode(texts, show_progress_bar=False), dtype=np.float32)
