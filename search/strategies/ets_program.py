"""The 0/1 program of ETS (arXiv 2502.13575, section 4), which chooses the leaves to keep, by HiGHS and greedily.

    maximise   sum_i value_i x_i  -  penalty * sum_j cost_j y_j  +  (coverage / K) * sum_k c_k
    subject to y_j >= y_below(j), y_leaf(i) >= x_i   each node on the path to a kept leaf is kept, and paid for once
               c_k <= sum_{i in cluster k} x_i       a cluster counts as covered only if one of its leaves is kept
               sum_i x_i >= 1                        at least one leaf is kept

x are the N leaves, y the M nodes on their paths (the node of each leaf included), c the K clusters; all are 0 or 1.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = npt.NDArray[np.float64]

_TIE_REWARD = 1e-4  # reward of each kept node where nodes cost nothing (penalty 0), as published: ties keep leaves
_ROUNDING = 1e-9  # objectives this close are equal: sums in another order


@dataclass(frozen=True)
class EtsProgram:
    """Program for N leaves of a tree.

    values    `[N]`, value of each leaf, not negative; adds up to 1 in ETS
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

    def number_clusters(self) -> list[int]:
        """Cluster of each leaf, as a number below K; empty without clusters."""
        numbers = {label: number for number, label in enumerate(dict.fromkeys(self.clusters))}
        return [numbers[label] for label in self.clusters]

    def node_price(self, node: int) -> float:
        """What a kept node subtracts from the objective; negative, a small reward, with penalty 0."""
        return self.penalty * self.costs[node] if self.penalty else -_TIE_REWARD


@dataclass(frozen=True)
class KeptLeaves:
    """Solution of a program.

    leaves     leaves to keep, in order
    objective  objective of this solution
    gap        upper bound on how much better the optimum is; 0 if this is the optimum
    solver     `fronts`, `highs` or `greedy`
    """

    leaves: tuple[int, ...]
    objective: float
    gap: float
    solver: str


def solve_by_highs(program: EtsProgram, seconds: float, clock: Callable[[], float] = time.monotonic) -> KeptLeaves:
    """Solves a program to optimality with HiGHS; the greedy solution is the least that is returned.

    `seconds` covers all of it: the greedy solution first, in milliseconds, then the matrices, then HiGHS. At the end of
    the time, returns the better of the greedy solution and the best one of HiGHS, with the gap to the bound it reached.
    HiGHS starts cold: SciPy passes it no first solution, and a constraint that asks for the greedy objective at least
    made it a third slower at 1,024 leaves, because all variables stand in it. HiGHS is not called where the greedy
    solution reaches the sum of all gains, as it does without a penalty: then every leaf is kept.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # outside of the time: once in a process

    deadline = clock() + seconds
    greedy = solve_greedily(program)
    best = KeptLeaves(greedy, program.objective_value(greedy), math.inf, "greedy")
    gains, rows, lower = _build_matrices(program)
    bound = float(np.maximum(gains, 0).sum())  # no solution exceeds the gains that are positive
    if bound - best.objective <= _ROUNDING:
        return replace(best, gap=0.0)
    seconds_left = deadline - clock()
    if seconds_left <= 0:
        return replace(best, gap=bound - best.objective)
    milp_result = milp(
        -gains,  # milp minimises
        constraints=LinearConstraint(rows, lb=lower),
        integrality=np.ones(len(gains)),
        bounds=Bounds(0, 1),
        options={"time_limit": seconds_left, "mip_rel_gap": 0.0},
    )
    if milp_result.x is not None:
        leaves = _selected_leaves(milp_result.x, program)
        objective = program.objective_value(leaves)
        if objective >= best.objective:
            best = KeptLeaves(leaves, objective, math.inf, "highs")
    if milp_result.status == 0:
        return replace(best, gap=0.0)
    if milp_result.mip_dual_bound is not None:
        bound = min(bound, -milp_result.mip_dual_bound)
    return replace(best, gap=max(0.0, bound - best.objective))


def solve_greedily(program: EtsProgram) -> tuple[int, ...]:
    """Adds the leaf that raises the objective most until none does; keeps at least one. Returns them in order.

    A leaf's gain changes when another leaf pays for a node of its path or covers its cluster, at most once for each. So
    a heap has the leaves by gain, and those whose gain changed again: the time of N leaves at depth D grows as
    `N D (D + log N)`.
    """
    num_clusters, cluster_of = program.num_clusters, program.number_clusters()
    leaves_below = _group_leaves(program.paths, len(program.costs))
    members = _group_leaves([[cluster] for cluster in cluster_of], num_clusters)
    reward = program.coverage / num_clusters if num_clusters else 0.0
    is_paid, is_covered = [False] * len(program.costs), [False] * num_clusters

    def gain(leaf: int) -> float:
        price = sum(program.node_price(node) for node in program.paths[leaf] if not is_paid[node])
        return program.values[leaf] - price + (reward if cluster_of and not is_covered[cluster_of[leaf]] else 0.0)

    gains = [gain(leaf) for leaf in range(len(program.values))]
    heap = [(-value, leaf) for leaf, value in enumerate(gains)]  # of equal gains, the first leaf
    heapq.heapify(heap)
    chosen_leaves: set[int] = set()
    while heap:
        loss, best = heapq.heappop(heap)
        if best in chosen_leaves or -loss != gains[best]:
            continue  # an entry from before its gain changed
        if chosen_leaves and gains[best] <= 0:
            break
        chosen_leaves.add(best)
        changed: set[int] = set()
        for node in program.paths[best]:
            if not is_paid[node]:
                is_paid[node] = True
                changed.update(leaves_below[node])
        if cluster_of and not is_covered[cluster_of[best]]:
            is_covered[cluster_of[best]] = True
            changed.update(members[cluster_of[best]])
        for leaf in changed - chosen_leaves:
            gains[leaf] = gain(leaf)
            heapq.heappush(heap, (-gains[leaf], leaf))
    return tuple(sorted(chosen_leaves))


def _group_leaves(groups: Iterable[Iterable[int]], num_groups: int) -> list[list[int]]:
    """Leaves in each group, given the groups of each leaf."""
    leaves: list[list[int]] = [[] for _ in range(num_groups)]
    for leaf, groups_of_leaf in enumerate(groups):
        for group in groups_of_leaf:
            leaves[group].append(leaf)
    return leaves


def _selected_leaves(solution: Floats, program: EtsProgram) -> tuple[int, ...]:
    # The solver returns 0 and 1 up to its integrality tolerance.
    return tuple(np.flatnonzero(solution[: len(program.values)] > 0.5).tolist())


def _build_matrices(program: EtsProgram) -> tuple[Floats, csr_array, Floats]:
    """Builds the objective and the constraints `A v >= lower` over v = (x, y, c), `[N + M + K]`.

    A is sparse, and takes time linear in the number of nodes on all paths. Needs a penalty: without one nodes are
    rewarded, and would be kept for their own sake.
    """
    from scipy.sparse import coo_array

    n, m = len(program.values), len(program.costs)
    k = program.num_clusters if program.coverage else 0
    gains = np.concatenate(
        [program.values, [-program.node_price(j) for j in range(m)], np.full(k, program.coverage / max(k, 1))]
    )
    # y_above - y_below >= 0 along each path, from the leaf up. One row per edge of the tree: `dict.fromkeys` drops the
    # edges that several paths share, in a fixed order.
    chains = [[leaf, *(n + node for node in reversed(path))] for leaf, path in enumerate(program.paths)]
    edges = dict.fromkeys(edge for chain in chains for edge in pairwise(chain))
    below, above = np.array(list(edges), dtype=np.intp).reshape(-1, 2).T
    cluster_of = np.array(program.number_clusters()[: n if k else 0], dtype=np.intp)
    leaves, num_edges, num_rows = np.arange(n), len(edges), len(edges) + k + 1
    blocks = [  # rows, columns, coefficient
        (np.arange(num_edges), above, 1.0),
        (np.arange(num_edges), below, -1.0),
        (num_edges + cluster_of, leaves[: len(cluster_of)], 1.0),  # sum of x in the cluster - c >= 0
        (np.arange(num_edges, num_edges + k), np.arange(n + m, n + m + k), -1.0),
        (np.full(n, num_rows - 1), leaves, 1.0),  # sum of x >= 1
    ]
    rows, columns = (np.concatenate([block[i] for block in blocks]) for i in (0, 1))
    coefficients = np.concatenate([np.full(len(block[0]), block[2]) for block in blocks])
    lower = np.zeros(num_rows)
    lower[-1] = 1.0
    return gains, coo_array((coefficients, (rows, columns)), shape=(num_rows, n + m + k)).tocsr(), lower
