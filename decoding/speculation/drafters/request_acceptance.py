"""Learns how the acceptance of each request differs from what is expected of all, and of each order within it.

`AcceptanceCalibration` counts over all requests: a request whose drafts are accepted less often than others' would be
drafted for as they are. Here every request has an offset to the logit of that probability, and a further one for each
trust level of its contexts, which for n-grams is that of an order. Both drift around 0 as the text grows and are
estimated as a Kalman filter does: each round moves them by what was accepted beyond what was expected, the more the
less certain they are. So few outcomes say little.

Without outcomes an estimate goes back to 0, whatever it was. So a request whose drafts were all refused is as good as
new after a while, and none is left without drafts for ever.

Shapes: B branches, L trust levels, R requests with offsets, N draft nodes; column 0 of `[R, 1 + L]` is the request's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled, compiled_in_place
from decoding.speculation.drafters.source import TRUST_LEVELS, Ints
from decoding.speculation.interfaces import Branch
from decoding.validation import require_count, require_positive

Numbers = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MOST_REQUESTS = 8192
"""Requests with offsets, 2 MB; of more, the one that was least recently drafted for is forgotten."""


class OffsetRows(NamedTuple):
    """Offsets of requests by row, and those of the branches of a round with the lengths of their texts."""

    rows_B: Ints
    lengths_B: Ints
    offsets_RL: Numbers
    variances_RL: Numbers
    lengths_R: Ints
    first_variances_L: Numbers
    half_life: int


@dataclass
class RequestAcceptance:
    """Offsets of requests.

    request_sd  standard deviation of the offsets of requests, in logits
    order_sd    that of a trust level beside its request
    half_life   tokens of a text after which half of an offset is left, if there are no outcomes
    """

    request_sd: float = 0.4
    order_sd: float = 0.3
    half_life: int = 512
    _rows: dict[int, int] = field(init=False, repr=False, default_factory=dict)  # request -> row, the oldest first
    _offsets: Numbers = field(init=False, repr=False)
    _variances: Numbers = field(init=False, repr=False)
    _lengths: Ints = field(init=False, repr=False)  # of the text at the last outcome

    def __post_init__(self) -> None:
        for name in ("request_sd", "order_sd"):
            require_positive(name, getattr(self, name), at_most=100.0)
        require_count("half_life", self.half_life, at_least=1)
        self._offsets = np.zeros((MOST_REQUESTS, 1 + TRUST_LEVELS))
        self._variances = np.zeros_like(self._offsets)
        self._lengths = np.zeros(MOST_REQUESTS, dtype=np.int64)
        self._first_variances = np.array([self.request_sd**2, *[self.order_sd**2] * TRUST_LEVELS])

    def odds_of(self, branches: Sequence[Branch]) -> Numbers:
        """Returns `[B, L]`: by how much the odds of acceptance are multiplied."""
        rows_B = np.array([self._rows.get(branch.request_id, -1) for branch in branches], dtype=np.int64)
        lengths_B = np.array([len(branch.tokens) for branch in branches], dtype=np.int64)
        return _multiply_odds(rows_B, lengths_B, self._offsets, self._lengths, self.half_life)

    def open_rows(self, branches: Sequence[Branch]) -> OffsetRows:
        """Returns what `move_offsets` needs of these requests. *Mutates*: begins rows for new ones."""
        rows_B = np.array([self._row_of(branch) for branch in branches], dtype=np.int64)
        lengths_B = np.array([len(branch.tokens) for branch in branches], dtype=np.int64)
        return OffsetRows(
            rows_B, lengths_B, self._offsets, self._variances, self._lengths, self._first_variances, self.half_life
        )

    def _row_of(self, branch: Branch) -> int:
        """Returns the row of a request, the newest from now on; a new one begins at 0. *Mutates*."""
        row = self._rows.pop(branch.request_id, None)
        if row is None:
            row = len(self._rows)
            if row == MOST_REQUESTS:
                row = self._rows.pop(next(iter(self._rows)))
            self._offsets[row], self._variances[row] = 0, self._first_variances
            self._lengths[row] = len(branch.tokens)
        self._rows[branch.request_id] = row
        return row


@compiled_in_place
def _fade(tokens: int, half_life: int) -> float:
    """Returns the share of an offset that is left after so many tokens."""
    return float(0.5 ** (max(tokens, 0) / half_life))  # a text that was cut back is none the newer


@compiled
def _multiply_odds(rows_B: Ints, lengths_B: Ints, offsets_RL: Numbers, lengths_R: Ints, half_life: int) -> Numbers:
    levels = offsets_RL.shape[1] - 1
    odds_BL = np.ones((len(rows_B), levels))
    for b in range(len(rows_B)):
        row = rows_B[b]
        if row >= 0:
            left = _fade(lengths_B[b] - lengths_R[row], half_life)
            for level in range(levels):
                odds_BL[b, level] = np.exp(left * (offsets_RL[row, 0] + offsets_RL[row, 1 + level]))
    return odds_BL


@compiled
def move_offsets(rows: OffsetRows, branch_N: Ints, level_N: Ints, expected_N: Numbers, accepted_N: Bools) -> None:
    """Adds the outcomes of N draft tokens whose parents were accepted. *Mutates* the rows.

    branch_N    whose draft each is in, ascending
    expected_N  the probability with which it was drafted, given its parent
    """
    rows_B, lengths_B, offsets_RL, variances_RL, lengths_R, first_variances_L, half_life = rows
    columns = offsets_RL.shape[1]
    surplus_L, information_L = np.empty(columns), np.empty(columns)
    node = 0
    for b in range(len(rows_B)):
        offsets_L, variances_L = offsets_RL[rows_B[b]], variances_RL[rows_B[b]]
        left = _fade(lengths_B[b] - lengths_R[rows_B[b]], half_life)
        lengths_R[rows_B[b]] = lengths_B[b]
        for at in range(columns):
            offsets_L[at] *= left
            variances_L[at] += (1 - left**2) * (first_variances_L[at] - variances_L[at])
        surplus_L[:], information_L[:] = 0, 0
        while node < len(branch_N) and branch_N[node] == b:
            at, p = 1 + level_N[node], expected_N[node]
            surplus_L[at] += accepted_N[node] - p
            information_L[at] += p * (1 - p)
            node += 1
        for at in range(1, columns):
            # one observation of the sum of both offsets, which share it by their variances
            both = 1 + information_L[at] * (variances_L[0] + variances_L[at])
            for part in (0, at):
                variance = variances_L[part]
                offsets_L[part] += variance * surplus_L[at] / both
                variances_L[part] -= variance**2 * information_L[at] / both
