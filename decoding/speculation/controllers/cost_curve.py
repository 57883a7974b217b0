"""What a round takes on this machine: seconds as a function of branches, draft rows and context.

The curve is base + per branch + per draft row + per token of context (all >= 0), fitted to rounds measured at start-up.
Rounds seen later refine two factors: one on what a plain round takes, one on what draft rows add (drafting included).
Two numbers can be told apart from ordinary rounds, whose drafts vary; four could not, and a curve that has forgotten
what plain rounds take cannot know whether drafts pay. Where rounds do not tell them apart, both move together.

Errors are relative to what a round took. So small rounds weigh as much as large ones, and a round that somebody else
slowed down weighs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from decoding.speculation.interfaces import RoundCost

Floats = npt.NDArray[np.float64]

_MEMORY = 300.0  # rounds
_PRIOR = 10.0  # rounds that the start-up's word is worth
_TIE = 0.5  # rounds that its word on the factors' ratio is worth, for ever
_LEAST_ROW = 1e-3  # of a round of one branch: a row is never free, and what is nothing cannot be refined
_GUESS = np.array([5e-3, 1e-4, 1e-4, 1e-7])  # a slow laptop, until something was measured


@runtime_checkable
class Paced(Protocol):
    """A controller that decides by what rounds cost."""

    def pace(self, costs: Sequence[RoundCost]) -> None:
        """Start from rounds measured on this machine. *Mutates*."""
        ...


@dataclass
class CostCurve:
    """`start` are rounds measured before the first real one."""

    start: tuple[RoundCost, ...] = ()
    _per: Floats = field(init=False, repr=False)  # base, branch, draft row, context token
    _factors: Floats = field(init=False, repr=False)  # on plain rounds, on draft rows
    _moments: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._per = _fit(self.start) if self.start else _GUESS
        self._factors = np.ones(2)
        self._moments = _PRIOR / 2 * (np.outer((1, 0, 1), (1, 0, 1)) + np.outer((0, 1, 1), (0, 1, 1)))

    def seconds(self, branches: int, drafted: int, context: int) -> float:
        """Expected seconds of a round."""
        return float(self._factors @ self._parts(branches, drafted, context))

    @property
    def per_row(self) -> float:
        """What one more draft row adds."""
        return float(self._factors[1] * self._per[2])

    def observe(self, cost: RoundCost) -> None:
        """*Mutates*."""
        parts = self._parts(cost.branches, cost.rows - cost.branches, cost.context_tokens)
        row = np.append(parts, cost.seconds) / max(cost.seconds, 1e-9)
        self._moments = self._moments * (1 - 1 / _MEMORY) + np.outer(row, row)
        tie = _TIE / self._factors[0] ** 2 * np.array([[1, -1], [-1, 1]])
        solved = np.linalg.solve(self._moments[:2, :2] + tie, self._moments[:2, 2])
        self._factors = np.maximum(solved, 0.05)

    def _parts(self, branches: int, drafted: int, context: int) -> Floats:
        plain = self._per @ (1.0, branches, 0.0, context)
        return np.array([plain, self._per[2] * drafted])


def _fit(costs: Sequence[RoundCost]) -> Floats:
    """Non-negative least squares of relative errors."""
    rows = np.array([(1.0, c.branches, c.rows - c.branches, c.context_tokens) for c in costs])
    seconds = np.array([max(c.seconds, 1e-9) for c in costs])
    scale = np.maximum(np.abs(rows / seconds[:, None]).max(axis=0), 1e-12)
    solved, _ = nnls(rows / seconds[:, None] / scale, np.ones(len(costs)))
    per = np.asarray(solved / scale)
    per[2] = max(per[2], _LEAST_ROW * (per[0] + per[1]))
    return per
