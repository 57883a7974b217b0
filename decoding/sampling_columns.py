"""Holds sampling parameters as arrays. Imports no torch: drafters read them, and their settings need none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.core import SamplingParams


class SamplingColumns(NamedTuple):
    """The sampling parameters of T rows, or of one row per branch. A named tuple, because Numba takes no dataclass."""

    temperature_T: npt.NDArray[np.float32]
    top_k_T: npt.NDArray[np.int64]
    top_p_T: npt.NDArray[np.float32]
    min_p_T: npt.NDArray[np.float32]

    @classmethod
    def from_params(cls, params: Sequence[SamplingParams]) -> SamplingColumns:
        """Collects the parameters of T rows."""
        return cls(
            np.array([p.temperature for p in params], dtype=np.float32),
            np.array([p.top_k for p in params], dtype=np.int64),
            np.array([p.top_p for p in params], dtype=np.float32),
            np.array([p.min_p for p in params], dtype=np.float32),
        )

    def repeat(self, counts: npt.NDArray[np.int64]) -> SamplingColumns:
        """Returns each row as many times as its count says."""
        return SamplingColumns(
            np.repeat(self.temperature_T, counts),
            np.repeat(self.top_k_T, counts),
            np.repeat(self.top_p_T, counts),
            np.repeat(self.min_p_T, counts),
        )
