"""Random programs of ETS, and their optima by other means."""

from __future__ import annotations

import itertools
import random

from search.strategies.ets_program import EtsProgram


def random_program(
    rng: random.Random, leaves: int, *, coverage: float, penalty: float = 1.0, clusters: int | None = None
) -> EtsProgram:
    """Returns a random tree with this number of leaves, random values that sum to 1, and random clusters."""
    parents: list[int] = []
    for node in range(rng.randint(1, 6)):
        parents.append(rng.randrange(-1, node))
    inner = len(parents)
    parents += [rng.randrange(-1, inner) for _ in range(leaves)]
    paths = []
    for leaf in range(inner, len(parents)):
        path, node = [leaf], parents[leaf]
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        paths.append(path)
    used = sorted({node for path in paths for node in path})
    number = {node: j for j, node in enumerate(used)}
    weights = [rng.choice([0, 0, 1, 2, 5]) + rng.random() * 1e-3 for _ in range(leaves)]
    costs = [rng.randint(1, 9) for _ in used]
    return EtsProgram(
        values=[weight / sum(weights) for weight in weights],
        paths=[[number[node] for node in path] for path in paths],
        costs=[cost / (sum(costs) + 1) for cost in costs],
        clusters=[rng.randrange(clusters or max(1, leaves // 2)) for _ in range(leaves)] if coverage else [],
        penalty=penalty,
        coverage=coverage,
    )


def brute_force(program: EtsProgram) -> float:
    leaves = range(len(program.values))
    return max(
        program.objective_value(subset)
        for count in range(1, len(leaves) + 1)
        for subset in itertools.combinations(leaves, count)
    )


def tree_dp(program: EtsProgram) -> float:
    """Without coverage a subtree is kept if its leaves are worth more than its own nodes: one pass from the bottom."""
    below: dict[int, set[int]] = {}
    for path in program.paths:
        for node, child in itertools.pairwise(path):
            below.setdefault(node, set()).add(child)
    value = {path[-1]: program.values[leaf] for leaf, path in enumerate(program.paths)}

    def worth(node: int) -> float:
        return (
            value.get(node, 0.0)
            - program.node_price(node)
            + sum(max(0.0, worth(child)) for child in below.get(node, ()))
        )

    def best_single(node: int) -> float:
        """The best with at least one leaf below `node`."""
        if node in value:
            return worth(node)
        total = sum(max(0.0, worth(child)) for child in below[node])
        if any(worth(child) > 0 for child in below[node]):
            return total - program.node_price(node)
        return max(best_single(child) for child in below[node]) - program.node_price(node)

    tops = {path[0] for path in program.paths}
    gains = [worth(top) for top in tops if worth(top) > 0]
    return sum(gains) if gains else max(best_single(top) for top in tops)
