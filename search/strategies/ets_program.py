"""Which leaves are worth the KV they pin: the 0/1 program of ETS (arXiv 2502.13575, section 4), and a greedy for it.

    maximise   sum_i value_i x_i  -  penalty * sum_j cost_j y_j  +  (coverage / K) * sum_k c_k
    subject to every node on the path to a kept leaf is kept, c_k <= kept leaves of cluster k, at least one leaf is kept

x are leaves, y all nodes on their paths (a leaf's own node among them), c the K clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TIE = 1e-4  # what a node is worth where it costs nothing, as published: ties keep leaves


@dataclass(frozen=True)
class Program:
    """N leaves on a tree.

    values    `[N]`, what each leaf is worth; adds up to 1 in ETS
    paths     per leaf, the nodes on its path as numbers below M, itself last
    costs     `[M]`, what each node costs; adds up to at most 1 in ETS
    clusters  `[N]`, the cluster of each leaf; empty drops the coverage term
    """

    values: Sequence[float]
    paths: Sequence[Sequence[int]]
    costs: Sequence[float]
    clusters: Sequence[int]
    penalty: float
    coverage: float

    def objective(self, kept: Iterable[int]) -> float:
        """What keeping exactly these leaves is worth."""
        leaves = list(kept)
        nodes = {node for leaf in leaves for node in self.paths[leaf]}
        covered = len({self.clusters[leaf] for leaf in leaves}) / self.count if self.clusters else 0.0
        return float(
            sum(self.values[leaf] for leaf in leaves)
            - sum(self.price(node) for node in nodes)
            + self.coverage * covered
        )

    @property
    def count(self) -> int:
        """K, the number of clusters."""
        return len(set(self.clusters))

    def price(self, node: int) -> float:
        """What a node takes off the objective."""
        return self.penalty * self.costs[node] if self.penalty else -_TIE


@dataclass(frozen=True)
class Kept:
    """The leaves to keep, in order, what that is worth, and how much more (at most) the best choice would be worth."""

    leaves: tuple[int, ...]
    objective: float
    gap: float
    solver: str


def solve(program: Program, seconds: float) -> Kept:
    """The best choice, by HiGHS; where it needs longer than `seconds`, the better of its best so far and the greedy's,
    with the gap to the bound it had reached."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    gains, rows, lower = _matrices(program)
    found = milp(
        -gains,
        constraints=LinearConstraint(rows, lb=lower),
        integrality=np.ones(len(gains)),
        bounds=Bounds(0, 1),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if found.status == 0:
        leaves = _leaves(found.x, program)
        return Kept(leaves, program.objective(leaves), 0.0, "highs")
    choices = {"greedy": greedy(program)} | ({} if found.x is None else {"highs": _leaves(found.x, program)})
    solver = max(choices, key=lambda name: program.objective(choices[name]))
    objective = program.objective(choices[solver])
    bound = float(np.maximum(gains, 0).sum()) if found.mip_dual_bound is None else -found.mip_dual_bound
    return Kept(choices[solver], objective, max(0.0, bound - objective), solver)


def greedy(program: Program) -> tuple[int, ...]:
    """Leaves that each raised the objective most when added, until none does; at least one. In order of leaf."""
    kept: list[int] = []
    paid: set[int] = set()
    covered: set[int] = set()
    left = list(range(len(program.values)))

    def gain(leaf: int) -> float:
        new = bool(program.clusters) and program.clusters[leaf] not in covered
        nodes = sum(program.price(node) for node in program.paths[leaf] if node not in paid)
        return program.values[leaf] - nodes + (program.coverage / program.count if new else 0.0)

    while left:
        best = max(left, key=gain)
        if kept and gain(best) <= 0:
            break
        kept.append(best)
        left.remove(best)
        paid |= set(program.paths[best])
        covered |= {program.clusters[best]} if program.clusters else set()
    return tuple(sorted(kept))


def _leaves(solution: Floats, program: Program) -> tuple[int, ...]:
    return tuple(np.flatnonzero(solution[: len(program.values)] > 0.5).tolist())


def _matrices(program: Program) -> tuple[Floats, Any, Floats]:
    """Gains of x, y and c, and the rows of `A v >= lower` as a sparse matrix."""
    from scipy.sparse import coo_array

    n, m = len(program.values), len(program.costs)
    k = program.count if program.coverage else 0
    number = {label: i for i, label in enumerate(dict.fromkeys(program.clusters))}
    gains = np.concatenate(
        [program.values, [-program.price(j) for j in range(m)], np.full(k, program.coverage / max(k, 1))]
    )
    entries: list[tuple[int, int, float]] = []
    chains = [[leaf, *(n + node for node in reversed(path))] for leaf, path in enumerate(program.paths)]
    links = dict.fromkeys(link for chain in chains for link in pairwise(chain))  # what hangs below, and what it needs
    for row, (below, above) in enumerate(links):
        entries += [(row, above, 1.0), (row, below, -1.0)]
    row = len(links)
    if not program.penalty:  # a node that pays must be on the path of a kept leaf
        for node in range(m):
            entries.append((row, n + node, -1.0))
            entries += [(row, leaf, 1.0) for leaf, path in enumerate(program.paths) if node in path]
            row += 1
    for cluster in range(k):  # c_k <= sum of x in k
        entries.append((row, n + m + cluster, -1.0))
        entries += [(row, leaf, 1.0) for leaf in range(n) if number[program.clusters[leaf]] == cluster]
        row += 1
    entries += [(row, leaf, 1.0) for leaf in range(n)]
    rows, columns, weights = zip(*entries, strict=True)
    lower = np.zeros(row + 1)
    lower[row] = 1.0
    return gains, coo_array((weights, (rows, columns)), shape=(row + 1, n + m + k)).tocsr(), lower
