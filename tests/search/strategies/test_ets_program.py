"""The program of ETS against brute force and a dynamic program over the tree; its greedy solver."""

from __future__ import annotations

import itertools
import random

import pytest

from search.strategies.ets_program import EtsProgram, solve_greedily, solve_program


def random_program(rng: random.Random, leaves: int, *, coverage: float, penalty: float = 1.0) -> EtsProgram:
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
        clusters=[rng.randrange(max(1, leaves // 2)) for _ in range(leaves)] if coverage else [],
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


class TestSolveProgram:
    @pytest.mark.parametrize("seed", range(60))
    def test_solution_equals_brute_force(self, seed: int) -> None:
        rng = random.Random(seed)
        program = random_program(rng, rng.randint(1, 12 if seed % 6 == 0 else 8), coverage=rng.choice([0, 0.3, 1.5]))
        solution = solve_program(program, 10.0)
        assert (solution.gap, solution.solver) == (0.0, "highs")
        assert solution.objective == pytest.approx(brute_force(program), abs=1e-9)
        assert solution.objective == pytest.approx(program.objective_value(solution.leaves), abs=1e-12)

    @pytest.mark.parametrize("seed", range(60))
    def test_solution_without_coverage_equals_the_tree_dp(self, seed: int) -> None:
        rng = random.Random(1000 + seed)
        program = random_program(rng, rng.randint(1, 40), coverage=0.0, penalty=rng.choice([0.2, 1.0, 3.0]))
        assert solve_program(program, 10.0).objective == pytest.approx(tree_dp(program), abs=1e-9)

    def test_solution_without_a_penalty_keeps_every_leaf(self) -> None:
        program = random_program(random.Random(0), 9, coverage=1.5, penalty=0.0)
        assert solve_program(program, 10.0).leaves == solve_greedily(program) == tuple(range(9))

    def test_greedy_solution_is_feasible_and_near_the_optimum(self) -> None:
        for seed in range(100):
            program = random_program(random.Random(seed), 8, coverage=1.45)
            assert solve_greedily(program)
            assert program.objective_value(solve_greedily(program)) >= 0.9 * brute_force(program)

    def test_at_the_time_limit_the_greedy_solution_is_returned_with_an_upper_bound_of_the_gap(self) -> None:
        program = random_program(random.Random(3), 200, coverage=1.45)
        hurried, unhurried = solve_program(program, 1e-9), solve_program(program, 60.0)
        assert hurried.objective <= unhurried.objective + 1e-9 <= hurried.objective + hurried.gap + 2e-9
        if hurried.solver == "greedy":
            assert hurried.leaves == solve_greedily(program)

    def test_expensive_nodes_are_pruned_and_shared_ones_kept(self) -> None:
        """Two leaves of equal value: one on a path of its own of three nodes, one beside a better leaf."""
        program = EtsProgram([0.4, 0.3, 0.3], [[0, 1], [0, 2], [3, 4, 5]], [0.13] * 6, [], penalty=1.0, coverage=0.0)
        assert solve_program(program, 10.0).leaves == (0, 1)

    def test_coverage_keeps_one_leaf_of_each_cluster(self) -> None:
        program = EtsProgram([0.5, 0.5, 0.0], [[0], [1], [2]], [0.25] * 3, [0, 0, 1], penalty=1.0, coverage=1.5)
        assert 2 in solve_program(program, 10.0).leaves
        without = EtsProgram([0.5, 0.5, 0.0], [[0], [1], [2]], [0.25] * 3, [], penalty=1.0, coverage=1.5)
        assert 2 not in solve_program(without, 10.0).leaves
