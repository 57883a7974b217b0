"""The coins of a rejection rule: a pure function of (request seed, tokens committed, coins tossed).

A rule asks for coins through `Coins` alone, so a test can follow every way they may fall and add up the
probabilities. Every round commits a token, so no two rounds of a request share a coin.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from decoding.noise import mix64

Vector = npt.NDArray[Any]
"""Numbers over ids: float64 when decoding, fractions in a proof."""

# Sets these coins apart from the Gumbel noise of the same seed and position.
_PURPOSE = 0x6163636570743F21
_BLOCK = 32  # tossed at once, as one costs as much


class Coins(Protocol):
    """Chance, as a rule may use it."""

    def accept(self, p: Any, q: Any = 1) -> bool:
        """True with probability min(1, p / q), so never where p is 0."""
        ...

    def choose(self, weights_V: Vector) -> int:
        """An index, with probability proportional to its weight, so never one of weight 0."""
        ...


class KeyedCoins:
    """The coins of one branch in one round. *Mutates* itself: each call tosses the next one."""

    def __init__(self, seed: int, committed: int) -> None:
        word = np.array([(seed ^ _PURPOSE) & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
        self._key = mix64(mix64(word) ^ np.uint64(committed))
        self._tossed = 0
        self._block: list[float] = []

    def uniform(self) -> float:
        """53 random bits in [0, 1)."""
        at = self._tossed % _BLOCK
        if at == 0:
            bits = mix64(self._key ^ np.arange(self._tossed, self._tossed + _BLOCK, dtype=np.uint64))
            self._block = ((bits >> np.uint64(11)) * 2.0**-53).tolist()
        self._tossed += 1
        return self._block[at]

    def accept(self, p: Any, q: Any = 1) -> bool:
        # Strict, and without a division: 0 is not below 0, and a q that underflowed does no harm.
        return bool(self.uniform() * q < p)

    def choose(self, weights_V: Vector) -> int:
        below_V = weights_V.cumsum()
        # The first index whose sum exceeds u * total: equal sums, which are weights of 0, are passed over. The product
        # is below the total but for rounding, where all weights are subnormal.
        target = min(self.uniform() * below_V[-1], np.nextafter(below_V[-1], 0))
        return int(below_V.searchsorted(target, side="right"))
