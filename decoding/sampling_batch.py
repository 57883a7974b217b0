"""Holds the sampling parameters of logits rows as arrays, with the noise keys of their positions. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from decoding.core import SamplingParams
from decoding.fork import LazyProperty
from decoding.noise import noise_keys, wrap_seeds
from decoding.sampling_columns import SamplingColumns

_OF_ALL = ("is_sampled", "is_filtered", "inverse_temperature")
"""What is computed of each row by itself, for every batch."""

_MOST_ALIKE = 512  # results kept, one for each number of rows; with drafts that is another one in every round


@dataclass(frozen=True)
class SamplingBatch:
    """The sampling parameters of T rows as arrays, and their noise keys."""

    temperature_T: npt.NDArray[np.float32]
    top_k_T: npt.NDArray[np.int64]
    top_p_T: npt.NDArray[np.float32]
    min_p_T: npt.NDArray[np.float32]
    keys_T2: npt.NDArray[np.int32]

    @classmethod
    def from_params(
        cls,
        params: Sequence[SamplingParams],
        seeds: Sequence[int],
        positions: Sequence[int] | npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64] | None = None,
    ) -> SamplingBatch:
        """Collects the parameters of T rows.

        positions  of the tokens to be chosen, not of the tokens before them, `[T]`
        counts     rows that each of `params` and `seeds` is for; by default one
        """
        columns = SamplingColumns.from_params(params)
        if counts is None:
            return cls(*columns, noise_keys(seeds, positions))
        return cls(*columns.repeat(counts), noise_keys(np.repeat(wrap_seeds(seeds), counts), positions))

    @LazyProperty
    def is_sampled(self) -> npt.NDArray[np.bool_]:
        """The rows with a temperature above 0."""
        return self.temperature_T > 0

    @LazyProperty
    def is_filtered(self) -> npt.NDArray[np.bool_]:
        """The sampled rows with a filter; every filter keeps the argmax, which the other rows take."""
        return self.is_sampled & ((self.top_k_T > 0) | (self.top_p_T < 1) | (self.min_p_T > 0))

    @LazyProperty
    def inverse_temperature(self) -> npt.NDArray[np.float32]:
        """What logits are multiplied with; 0 for rows at temperature 0."""
        is_sampled_T = self.is_sampled
        return np.where(is_sampled_T, 1 / np.where(is_sampled_T, self.temperature_T, 1), 0).astype(np.float32)

    @LazyProperty
    def log_min_p(self) -> npt.NDArray[np.float32]:
        """Logarithms of min-p, how far below the most likely token one may be; where it is off, below every logit."""
        floors_T = np.log(np.maximum(self.min_p_T, 1e-38))  # finite where min-p is 0
        return np.where(self.min_p_T > 0, floors_T, -3.3e38).astype(np.float32)

    @LazyProperty
    def is_greedy(self) -> bool:
        """Whether every row takes its most likely token."""
        return not self.is_sampled.any()

    @LazyProperty
    def unfiltered_rows(self) -> npt.NDArray[np.int64]:
        """Numbers of the rows that `is_filtered` does not name."""
        return np.flatnonzero(~self.is_filtered)

    def with_keys(self, keys_T2: npt.NDArray[np.int32]) -> SamplingBatch:
        """Returns these rows with other noise keys, and with what has been computed of their parameters."""
        moved = object.__new__(SamplingBatch)
        moved.__dict__.update(self.__dict__, keys_T2=keys_T2)
        return moved

    def give_rows(self, owner_T: npt.NDArray[np.int64]) -> SamplingBatch:
        """Returns rows with the parameters of these, without keys, and with what a sampler asks of every batch."""
        rows = object.__new__(SamplingBatch)
        for name in ("temperature_T", "top_k_T", "top_p_T", "min_p_T", *_OF_ALL):
            rows.__dict__[name] = getattr(self, name)[owner_T]
        rows.__dict__["is_greedy"] = self.is_greedy
        _ = rows.unfiltered_rows
        return rows

    def select_rows(self, rows_R: npt.NDArray[np.int64]) -> SamplingBatch:
        """Returns the parameters of these rows."""
        temperature_R, top_k_R = self.temperature_T[rows_R], self.top_k_T[rows_R]
        return SamplingBatch(temperature_R, top_k_R, self.top_p_T[rows_R], self.min_p_T[rows_R], self.keys_T2[rows_R])


class RoundRows:
    """The logits rows of requests that go on: what they have set is collected once for many rounds.

    first_rows  the first row of each request, in the round that was placed last
    """

    def __init__(self, params: Sequence[SamplingParams], seeds: Sequence[int]) -> None:
        self._params, self._seed_B, first = params, wrap_seeds(seeds), params[0]
        # requests of one search have the same parameters: then only the number of rows counts
        self._are_alike = all(other is first or other == first for other in params)
        self._counts: Sequence[int] = ()
        self.first_rows: tuple[int, ...] = ()

    @LazyProperty
    def _requests(self) -> SamplingBatch:
        return _collect_params(self._params)

    def place(self, positions_T: npt.NDArray[np.int64], counts: Sequence[int]) -> SamplingBatch:
        """Returns the rows for tokens to be chosen at these positions, so many of each request. *Mutates*."""
        if self._counts != counts:
            self._counts, self.first_rows = counts, tuple(accumulate(counts, initial=0))[:-1]
            self._seed_T = self._seed_B.repeat(counts)
            self._rows = self._give_rows(counts)
        return self._rows.with_keys(noise_keys(self._seed_T, positions_T))

    def _give_rows(self, counts: Sequence[int]) -> SamplingBatch:
        if self._are_alike:
            return _repeat_params(self._params[0], sum(counts))
        return self._requests.give_rows(np.repeat(np.arange(len(counts)), counts))


def _collect_params(params: Sequence[SamplingParams]) -> SamplingBatch:
    return SamplingBatch(*SamplingColumns.from_params(params), np.empty((0, 2), dtype=np.int32))


# kept while requests come and go
@lru_cache(maxsize=_MOST_ALIKE)
def _repeat_params(params: SamplingParams, count: int) -> SamplingBatch:
    """Returns `count` rows with the same parameters, without keys."""
    return _collect_params([params]).give_rows(np.zeros(count, dtype=np.int64))
