"""Expected seconds of a round on this machine, as a function of branches, draft nodes and context.

The curve is base + per branch + per draft node + per token of context (all >= 0), fitted to rounds timed at start-up.
Where CUDA graphs fill rounds up to a few counts of rows, or products are made in tiles of 16, the base is a step per
count, at least that of fewer rows, and grows with the rows beyond the largest.
Later rounds refine two factors: one on the cost of a plain round, one on the cost of draft nodes (drafting included).
Ordinary rounds, whose drafts vary, determine two numbers but not four. A fit of all four would lose the cost of plain
rounds, which decides whether drafts pay. Rounds that do not separate the two factors change both together.

Errors are relative to the duration of a round: small rounds have the same weight as large ones, and a round that
another process slowed down has almost none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from decoding.speculation.interfaces import CostEstimate, RoundCost

Floats = npt.NDArray[np.float64]

_MEMORY_ROUNDS = 300.0
_PRIOR_ROUNDS = 10.0  # weight of the start-up fit, in rounds
_RATIO_ROUNDS = 0.5  # weight of the start-up ratio of the two factors, in rounds; it does not decay
_MIN_NODE_SHARE = (
    1e-3  # of a round of one branch: a node that does not fill up is never free, and no factor could refine a 0
)
_MOST_COLUMNS = 7
_UNMEASURED = np.array([5e-3, 1e-4, 1e-4, 1e-7])  # a slow laptop, until rounds are measured


@runtime_checkable
class CalibratedCost(Protocol):
    """Controller that decides by the cost of rounds."""

    def calibrate_cost(self, costs: Sequence[RoundCost], row_counts: Sequence[int] = ()) -> None:
        """Starts from rounds measured on this machine. *Mutates*.

        `row_counts`, ascending, are the counts of rows up to each of which a round takes nearly as long, if there are
        some: rounds are filled up to them, or they fill tiles.
        """
        ...


@dataclass
class CostCurve:
    """Cost model of rounds; `warmup_costs` were measured by the warm-up profile.

    row_counts  counts of rows, ascending, up to each of which a round takes nearly as long; empty where every row costs
    """

    warmup_costs: tuple[RoundCost, ...] = ()
    row_counts: tuple[int, ...] = ()
    _steps: Floats = field(init=False, repr=False)  # base by count of rows
    _single_steps: list[float] = field(init=False, repr=False)  # the same, for one round at a time
    _seconds_per: tuple[float, float, float] = field(init=False, repr=False)  # branch, draft node, context token
    _factors: tuple[float, float] = field(init=False, repr=False)  # on plain rounds, on draft nodes
    # branches and most nodes, and what `_list_steps` returns for them
    _kept_steps: tuple[tuple[int, int], tuple[Floats, Floats, tuple[int, ...]]] = field(init=False, repr=False)
    # sums over rounds of the products plain * plain, plain * nodes, nodes * nodes, plain * 1, nodes * 1
    _moments: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        fitted = _fit_costs(self.warmup_costs, self.row_counts) if self.warmup_costs else _UNMEASURED
        self._steps, self._single_steps = fitted[:-3], fitted[:-3].tolist()
        branch, node, context = fitted[-3:].tolist()
        self._seconds_per = branch, node, context
        self._factors = 1.0, 1.0
        self._kept_steps = (0, 0), (np.zeros(1), np.zeros(1), (0,))
        half = _PRIOR_ROUNDS / 2
        self._moments = half, 0.0, half, half, half

    def round_seconds(self, branches: int, drafted: int, context: int) -> float:
        """Returns the expected seconds of a round with `drafted` draft nodes."""
        plain, nodes = self._cost_terms(branches, drafted, context)
        plain_factor, node_factor = self._factors
        return plain_factor * plain + node_factor * nodes

    def estimate_cost(
        self,
        branches: int,
        most: int,
        context: int,
        *,
        plain_factor: float = 1.0,
        node_factor: float = 1.0,
        drafting: float = 0.0,
    ) -> CostEstimate:
        """Returns the expected seconds of rounds with up to `most` draft nodes.

        `plain_factor` is on all of them, `node_factor` on what draft nodes take more than none. All of them begin with
        `drafting`, a share of a plain round: when nodes are chosen it is spent, also if none is.
        """
        plain, _ = self._cost_terms(branches, 0, context)
        first, of_nodes = max(plain_factor * self._factors[0] * plain, 1e-12), plain_factor * node_factor
        steps_N, nodes_N, corners = self._list_steps(branches, most)
        # above 0, as is every step, so that no number of nodes takes less than a smaller one
        seconds_N = (1 + drafting) * first + of_nodes * self._factors[0] * steps_N
        seconds_N += of_nodes * self._factors[1] * self._seconds_per[1] * nodes_N
        return CostEstimate(seconds_N, corners, drafting_seconds=drafting * first)

    def _list_steps(self, branches: int, most: int) -> tuple[Floats, Floats, tuple[int, ...]]:
        """Returns by how much the base of 0 to `most` draft nodes is above that of none; their numbers; the corners.

        Kept for the next round, which mostly is as large.
        """
        if self._kept_steps[0] != (branches, most):
            nodes_N = np.arange(most + 1)
            base_N = self._base_of(branches + nodes_N)
            corners = (*(count - branches for count in self.row_counts if 0 < count - branches < most), most)
            self._kept_steps = (branches, most), (base_N - base_N[0], nodes_N.astype(np.float64), corners)
        return self._kept_steps[1]

    @property
    def seconds_per_node(self) -> float:
        """Expected seconds of one more draft node, apart from those of a larger count of rows."""
        return self._factors[1] * self._seconds_per[1]

    def observe(self, cost: RoundCost) -> None:
        """Refines the factors with a measured round. *Mutates*."""
        # Single numbers, as in `_cost_terms`. Divided by the measured seconds: relative errors.
        seconds = max(cost.seconds, 1e-9)
        parts = self._cost_terms(cost.num_branches, cost.num_tokens - cost.num_branches, cost.context_tokens)
        plain, nodes, value = parts[0] / seconds, parts[1] / seconds, cost.seconds / seconds
        new = plain * plain, plain * nodes, nodes * nodes, plain * value, nodes * value
        decay = 1 - 1 / _MEMORY_ROUNDS
        self._moments = tuple(decay * before + added for before, added in zip(self._moments, new, strict=True))
        pp, pn, nn, pv, nv = self._moments
        # Ridge on the difference of the factors: rounds that do not separate them move both.
        tie = _RATIO_ROUNDS / self._factors[0] ** 2
        pp, pn, nn = pp + tie, pn - tie, nn + tie
        determinant = pp * nn - pn * pn
        # noise may solve to a negative cost
        self._factors = max((pv * nn - nv * pn) / determinant, 0.05), max((nv * pp - pv * pn) / determinant, 0.05)

    def _cost_terms(self, branches: int, drafted: int, context: int) -> tuple[float, float]:
        # single numbers: for so few, arrays take ten times as long, and every round asks
        per_branch, per_node, per_context = self._seconds_per
        base = self._single_steps[0]
        if self.row_counts:
            rows, largest = branches + drafted, self.row_counts[-1]
            at = bisect_left(self.row_counts, min(rows, largest))
            base = self._single_steps[at] * max(rows / largest, 1.0)
        return base + per_branch * branches + per_context * context, per_node * drafted

    def _base_of(self, rows: npt.NDArray[np.int64]) -> Floats:
        """Returns the base of rounds with so many rows; beyond the largest count it grows with them."""
        if not self.row_counts:
            return np.full(rows.shape, self._steps[0])
        steps: Floats = self._steps[np.minimum(np.searchsorted(self.row_counts, rows), len(self.row_counts) - 1)]
        return steps * _scale_beyond(rows, self.row_counts)


def _scale_beyond(rows: npt.NDArray[np.int64], row_counts: Sequence[int]) -> Floats:
    """Returns how many times the base of the largest count is that of so many rows, at least 1."""
    return np.maximum(rows / row_counts[-1], 1.0) if row_counts else np.ones(rows.shape)


def _fit_costs(costs: Sequence[RoundCost], row_counts: Sequence[int]) -> Floats:
    """Returns seconds (bases by count of rows, per branch, node and context token) by non-negative least squares."""
    rows_T = np.array([cost.num_tokens for cost in costs])
    # a column per step from one count of rows to the next; the first is the base of all
    steps_TS = np.array([[1.0, *(rows > count for count in row_counts[:-1])] for rows in rows_T.tolist()])
    steps_TS *= _scale_beyond(rows_T, row_counts)[:, None]
    others_T3 = np.array([(c.num_branches, c.num_tokens - c.num_branches, c.context_tokens) for c in costs])
    columns = np.concatenate([steps_TS, others_T3], axis=1)
    seconds = np.array([max(c.seconds, 1e-9) for c in costs])
    # Columns differ by a factor of 1e5 (context tokens against 1), which is not solved accurately unscaled.
    scale = np.maximum(np.abs(columns / seconds[:, None]).max(axis=0), 1e-12)
    seconds_per: Floats = solve_nonnegative(columns / seconds[:, None] / scale, np.ones(len(costs))) / scale
    seconds_per[:-3] = np.cumsum(seconds_per[:-3])
    if not row_counts:
        seconds_per[-2] = max(seconds_per[-2], _MIN_NODE_SHARE * (seconds_per[0] + seconds_per[-3]))
    return seconds_per


def solve_nonnegative(rows: Floats, values: Floats) -> Floats:
    """Returns the x >= 0 with the least |rows x - values|.

    The columns that are not 0 in the solution have it as their ordinary least squares. So the best of all sets of
    columns whose solution has no negative number is exact. For more than a few columns SciPy's `nnls` finds it, after
    .4 s of imports, which every command that checks settings would pay.
    """
    width, total = rows.shape[1], float(np.sum(values**2))
    if width > _MOST_COLUMNS:
        from scipy.optimize import nnls

        solution, _ = nnls(rows, values)
        return np.asarray(solution)
    best: Floats = np.zeros(width)
    least = total
    for columns in (list(some) for size in range(1, width + 1) for some in combinations(range(width), size)):
        solution = np.linalg.lstsq(rows[:, columns], values, rcond=None)[0]
        error = float(np.sum((rows[:, columns] @ solution - values) ** 2))
        # by more than rounding: where columns depend on each other, fewer and earlier ones explain the values as well
        if error < least - 1e-12 * total and (solution >= 0).all():
            best, least = np.zeros(width), error
            best[columns] = solution
    return best
