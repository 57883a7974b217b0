"""The 0/1 program of ETS (arXiv 2502.13575, section 4), which chooses the leaves to keep, and a greedy solver for it.

    maximise   sum_i value_i x_i  -  penalty * sum_j cost_j y_j  +  (coverage / K) * sum_k c_k
    subject to y_j >= y_below(j), y_leaf(i) >= x_i   each node on the path to a kept leaf is kept, and paid for once
               c_k <= sum_{i in cluster k} x_i       a cluster counts as covered only if one of its leaves is kept
               sum_i x_i >= 1                        at least one leaf is kept

x are the N leaves, y the M nodes on their paths (the node of each leaf included), c the K clusters; all are 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = npt.NDArray[np.float64]

_TIE_REWARD = 1e-4  # reward of each kept node where nodes cost nothing (penalty 0), as published: ties keep leaves


@dataclass(frozen=True)
class EtsProgram:
    """Program for N leaves of a tree.

    values    `[N]`, value of each leaf; adds up to 1 in ETS
    paths     per leaf, the nodes on its path as numbers below M, its own node last
    costs     `[M]`, cost of each node; adds up to at most 1 in ETS
    clusters  `[N]`, cluster of each leaf; empty drops the coverage term
    penalty   weight of the costs
    coverage  weight of the covered clusters
    """

    values: Sequence[float]
    paths: Sequence[Sequence[int]]
    costs: Sequence[float]
    clusters: Sequence[int]
    penalty: float
    coverage: float

    def objective_value(self, leaves: Iterable[int]) -> float:
        """Objective of keeping exactly these leaves, with the nodes on their paths."""
        leaves = list(leaves)
        nodes = {node for leaf in leaves for node in self.paths[leaf]}  # a shared node is paid for once
        covered = len({self.clusters[leaf] for leaf in leaves}) / self.num_clusters if self.clusters else 0.0
        return float(
            sum(self.values[leaf] for leaf in leaves)
            - sum(self.node_price(node) for node in nodes)
            + self.coverage * covered
        )

    @property
    def num_clusters(self) -> int:
        """K, the number of clusters."""
        return len(set(self.clusters))

    def node_price(self, node: int) -> float:
        """What a kept node subtracts from the objective; negative, a small reward, with penalty 0."""
        return self.penalty * self.costs[node] if self.penalty else -_TIE_REWARD


@dataclass(frozen=True)
class KeptLeaves:
    """Solution of a program.

    leaves     leaves to keep, in order
    objective  objective of this solution
    gap        upper bound on how much better the optimum is; 0 if this is the optimum
    solver     `highs` or `greedy`
    """

    leaves: tuple[int, ...]
    objective: float
    gap: float
    solver: str


def solve_program(program: EtsProgram, seconds: float) -> KeptLeaves:
    """Solves a program to optimality with HiGHS.

    After `seconds`, returns the better of its best solution and the greedy one, with the gap to the bound it reached.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    gains, rows, lower = _build_matrices(program)
    milp_result = milp(
        -gains,  # milp minimises
        constraints=LinearConstraint(rows, lb=lower),
        integrality=np.ones(len(gains)),
        bounds=Bounds(0, 1),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if milp_result.status == 0:
        leaves = _selected_leaves(milp_result.x, program)
        return KeptLeaves(leaves, program.objective_value(leaves), 0.0, "highs")
    solutions = {"greedy": solve_greedily(program)}
    if milp_result.x is not None:
        solutions["highs"] = _selected_leaves(milp_result.x, program)
    solver = max(solutions, key=lambda name: program.objective_value(solutions[name]))
    objective = program.objective_value(solutions[solver])
    # Without a bound of HiGHS: all gains that are positive, which no solution exceeds.
    bound = float(np.maximum(gains, 0).sum()) if milp_result.mip_dual_bound is None else -milp_result.mip_dual_bound
    return KeptLeaves(solutions[solver], objective, max(0.0, bound - objective), solver)


def solve_greedily(program: EtsProgram) -> tuple[int, ...]:
    """Adds the leaf that raises the objective most until none does; keeps at least one. Returns them in order."""
    chosen_leaves: list[int] = []
    paid: set[int] = set()
    covered: set[int] = set()
    remaining = list(range(len(program.values)))

    def gain(leaf: int) -> float:
        is_new = bool(program.clusters) and program.clusters[leaf] not in covered
        price = sum(program.node_price(node) for node in program.paths[leaf] if node not in paid)
        return program.values[leaf] - price + (program.coverage / program.num_clusters if is_new else 0.0)

    while remaining:
        best = max(remaining, key=gain)
        if chosen_leaves and gain(best) <= 0:
            break
        chosen_leaves.append(best)
        remaining.remove(best)
        paid |= set(program.paths[best])
        covered |= {program.clusters[best]} if program.clusters else set()
    return tuple(sorted(chosen_leaves))


def _selected_leaves(solution: Floats, program: EtsProgram) -> tuple[int, ...]:
    # The solver returns 0 and 1 up to its integrality tolerance.
    return tuple(np.flatnonzero(solution[: len(program.values)] > 0.5).tolist())


def _build_matrices(program: EtsProgram) -> tuple[Floats, csr_array, Floats]:
    """Builds the objective and the constraints `A v >= lower` over v = (x, y, c), `[N + M + K]`; A is sparse."""
    from scipy.sparse import coo_array

    n, m = len(program.values), len(program.costs)
    k = program.num_clusters if program.coverage else 0
    cluster_index = {label: i for i, label in enumerate(dict.fromkeys(program.clusters))}
    gains = np.concatenate(
        [program.values, [-program.node_price(j) for j in range(m)], np.full(k, program.coverage / max(k, 1))]
    )
    entries: list[tuple[int, int, float]] = []  # (row, column, coefficient)
    # y_above - y_below >= 0 along each path, from the leaf up. One row per edge of the tree: `dict.fromkeys` drops the
    # edges that several paths share, in a fixed order.
    chains = [[leaf, *(n + node for node in reversed(path))] for leaf, path in enumerate(program.paths)]
    edges = dict.fromkeys(edge for chain in chains for edge in pairwise(chain))
    for row, (below, above) in enumerate(edges):
        entries += [(row, above, 1.0), (row, below, -1.0)]
    row = len(edges)
    if not program.penalty:
        # Kept nodes are rewarded, so a node must not be kept for its own sake: sum of x below it - y >= 0. With a
        # penalty the objective ensures this.
        for node in range(m):
            entries.append((row, n + node, -1.0))
            entries += [(row, leaf, 1.0) for leaf, path in enumerate(program.paths) if node in path]
            row += 1
    for cluster in range(k):  # sum of x in the cluster - c >= 0
        entries.append((row, n + m + cluster, -1.0))
        entries += [(row, leaf, 1.0) for leaf in range(n) if cluster_index[program.clusters[leaf]] == cluster]
        row += 1
    entries += [(row, leaf, 1.0) for leaf in range(n)]  # sum of x >= 1
    rows, columns, coefficients = zip(*entries, strict=True)
    lower = np.zeros(row + 1)
    lower[row] = 1.0
    return gains, coo_array((coefficients, (rows, columns)), shape=(row + 1, n + m + k)).tocsr(), lower
