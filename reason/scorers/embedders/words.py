"""Words and numbers as embeddings: no model, any engine."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from decoding.core import Vector
from decoding.validation import require_count, require_positive
from search.tree import Step

_WORDS = re.compile(r"\d+(?:\.\d+)?|\w+|[^\w\s]")


class Words:
    """A step is how often it holds each word, number and sign, and each pair of neighbours among them.

    cut    cosine distance below which two steps say the same; `scripts/bench/calibrate.py` measures it
    size   entries of a vector; words share entries by their hash
    """

    wants_hidden = False

    def __init__(self, *, cut: float, size: int = 1024) -> None:
        require_positive("cut", cut)
        require_count("size", size, at_least=1)
        self.cut, self.size = float(cut), size

    def check(self) -> None:
        """Nothing can be wrong."""

    def load(self) -> None:
        """Nothing to load."""

    async def embed(self, steps: Sequence[Step], hidden: Sequence[Vector | None]) -> Vector:
        """See `search.strategy.Embedder`."""
        return np.stack([self._vector(step.text) for step in steps])

    def _vector(self, text: str) -> Vector:
        words = _WORDS.findall(text.lower())
        vector = np.zeros(self.size, dtype=np.float32)
        for word in (*words, *map(" ".join, pairwise(words))):
            vector[zlib.crc32(word.encode()) % self.size] += 1
        return vector
