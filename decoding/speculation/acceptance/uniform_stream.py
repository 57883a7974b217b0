"""Uniform random numbers of a rejection rule: a pure function of (request seed, tokens committed, numbers drawn).

A rule draws through `UniformStream` alone, so a test can follow every outcome and add up the probabilities. Every round
commits a token, so no two rounds of a request share a number.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from decoding.noise import mix_uint64

Vector = npt.NDArray[Any]
"""Numbers over ids: float64 in decoding, exact fractions in a proof."""

# Separates this stream from the Gumbel noise of the same seed and position.
_PURPOSE = 0x6163636570743F21
_BLOCK = 32  # numbers made at once, which costs as much as one


class UniformStream(Protocol):
    """Random decisions of an acceptance rule."""

    def accept_ratio(self, p: Any, q: Any = 1) -> bool:
        """Returns True with probability min(1, p / q), so never where p is 0."""
        ...

    def sample_index(self, weights_V: Vector) -> int:
        """Returns an index with probability proportional to its weight, so never one of weight 0."""
        ...


class SeededUniformStream:
    """The stream of one branch in one round. *Mutates* itself: each call draws the next number."""

    def __init__(self, seed: int, committed: int) -> None:
        word = np.array([(seed ^ _PURPOSE) & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
        self._key = mix_uint64(mix_uint64(word) ^ np.uint64(committed))
        self._num_drawn = 0
        self._block: list[float] = []

    def next_uniform(self) -> float:
        """Returns 53 random bits in [0, 1)."""
        index = self._num_drawn % _BLOCK
        if index == 0:
            bits = mix_uint64(self._key ^ np.arange(self._num_drawn, self._num_drawn + _BLOCK, dtype=np.uint64))
            self._block = ((bits >> np.uint64(11)) * 2.0**-53).tolist()
        self._num_drawn += 1
        return self._block[index]

    def accept_ratio(self, p: Any, q: Any = 1) -> bool:
        # Strict and without a division: u * q < p is never true for p = 0, and a q that underflowed to 0 does no harm.
        return bool(self.next_uniform() * q < p)

    def sample_index(self, weights_V: Vector) -> int:
        cumulative_V = weights_V.cumsum()
        # The first index whose sum exceeds u * total: `side="right"` passes over equal sums, which are weights of 0.
        # The product is below the total but for rounding, which needs `min` where all weights are subnormal.
        threshold = min(self.next_uniform() * cumulative_V[-1], np.nextafter(cumulative_V[-1], 0))
        return int(cumulative_V.searchsorted(threshold, side="right"))
