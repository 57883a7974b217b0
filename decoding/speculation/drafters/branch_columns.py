"""Keeps what branches have set as arrays: most rounds have the branches of the round before."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.core import SamplingParams
from decoding.noise import wrap_seeds
from decoding.sampling_columns import SamplingColumns
from decoding.speculation.drafters.ngram_hash_table import Keys
from decoding.speculation.interfaces import Branch


class BranchColumns:
    """Sampling parameters and seeds of the branches of a round."""

    def __init__(self) -> None:
        self._key: list[tuple[SamplingParams, int]] = []
        self._columns = SamplingColumns.from_params([]), wrap_seeds([])

    def collect(self, branches: Sequence[Branch]) -> tuple[SamplingColumns, Keys]:
        """Returns the parameters and the seeds, a row for each branch. *Mutates* what is kept."""
        key = [(branch.params, branch.seed) for branch in branches]
        if key != self._key:
            params, seeds = [one for one, _ in key], [seed for _, seed in key]
            self._key, self._columns = key, (SamplingColumns.from_params(params), wrap_seeds(seeds))
        return self._columns
