"""Embeds steps by the words and numbers in them: no model, any engine."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from decoding.core import Vector
from decoding.validation import require_count
from reason.scorers.embedders.measured_threshold import MeasuredThreshold
from search.tree import Step

_WORDS = re.compile(r"\d+(?:\.\d+)?|\w+|[^\w\s]")


class WordEmbedder(MeasuredThreshold):
    """Counts each word, number and sign of a step, and each pair of neighbours among them.

    How far apart steps lie depends on how many words the model writes to say the same.

    size    entries of a vector; words are mapped to them by their hash (CRC-32, equal on every machine)
    """

    needs_hidden_states = False

    def __init__(self, *, distance_threshold: float, measured_on: str | None = None, size: int = 1024) -> None:
        super().__init__(distance_threshold=distance_threshold, measured_on=measured_on)
        require_count("size", size, at_least=1)
        self.size = size

    def validate(self) -> None:
        """Checks nothing: there is no model and no library that could be missing."""

    def load(self) -> None:
        """Does nothing: there is no model to load."""

    async def embed(self, steps: Sequence[Step], hidden: Sequence[Vector | None]) -> Vector:
        """See `search.strategy.StepEmbedder`."""
        return np.stack([self._vector(step.text) for step in steps])

    def _vector(self, text: str) -> Vector:
        words = _WORDS.findall(text.lower())
        vector = np.zeros(self.size, dtype=np.float32)
        for word in (*words, *map(" ".join, pairwise(words))):
            vector[zlib.crc32(word.encode()) % self.size] += 1
        return vector
