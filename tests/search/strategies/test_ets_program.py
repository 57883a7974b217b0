"""The program of ETS against brute force and a dynamic program over the tree; its greedy solver."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from scipy.optimize import OptimizeResult

from search.strategies.ets_program import EtsProgram, solve_by_highs, solve_greedily
from tests.support.ets_programs import brute_force, random_program, tree_dp


def greedy_by_definition(program: EtsProgram) -> tuple[int, ...]:
    """Computes every gain again before each choice."""
    chosen: list[int] = []

    def gain(leaf: int) -> float:
        paid = {node for other in chosen for node in program.paths[other]}
        is_new = bool(program.clusters) and program.clusters[leaf] not in {program.clusters[other] for other in chosen}
        price = sum(program.node_price(node) for node in program.paths[leaf] if node not in paid)
        return program.values[leaf] - price + (program.coverage / program.num_clusters if is_new else 0.0)

    while open_leaves := [leaf for leaf in range(len(program.values)) if leaf not in chosen]:
        best = max(open_leaves, key=gain)
        if chosen and gain(best) <= 0:
            break
        chosen.append(best)
    return tuple(sorted(chosen))


def _positive_gains(program: EtsProgram) -> float:
    prices = [program.node_price(node) for node in range(len(program.costs))]
    return sum(program.values) + program.coverage + sum(max(0.0, -price) for price in prices)


class TestSolveByHighs:
    @pytest.mark.parametrize("seed", range(60))
    def test_solution_equals_brute_force(self, seed: int) -> None:
        rng = random.Random(seed)
        program = random_program(rng, rng.randint(1, 12 if seed % 6 == 0 else 8), coverage=rng.choice([0, 0.3, 1.5]))
        solution = solve_by_highs(program, 10.0)
        assert (solution.gap, solution.solver) == (0.0, "highs")
        assert solution.objective == pytest.approx(brute_force(program), abs=1e-9)
        assert solution.objective == pytest.approx(program.objective_value(solution.leaves), abs=1e-12)

    @pytest.mark.parametrize("seed", range(60))
    def test_solution_without_coverage_equals_the_tree_dp(self, seed: int) -> None:
        rng = random.Random(1000 + seed)
        program = random_program(rng, rng.randint(1, 40), coverage=0.0, penalty=rng.choice([0.2, 1.0, 3.0]))
        assert solve_by_highs(program, 10.0).objective == pytest.approx(tree_dp(program), abs=1e-9)

    def test_solution_without_a_penalty_keeps_every_leaf(self) -> None:
        for seed in range(30):
            program = random_program(random.Random(seed), 9, coverage=random.Random(seed).choice([0, 1.5]), penalty=0.0)
            solution = solve_by_highs(program, 10.0)
            assert (solution.leaves, solution.gap) == (tuple(range(9)), 0.0)
            assert solution.objective == pytest.approx(brute_force(program), abs=1e-9)

    @pytest.mark.parametrize("penalty", [0.0, 0.3, 1.0, 3.0])
    @pytest.mark.parametrize("seed", range(40))
    def test_greedy_solution_equals_its_definition(self, seed: int, penalty: float) -> None:
        rng = random.Random(seed)
        program = random_program(rng, rng.randint(1, 60), coverage=rng.choice([0, 0.3, 1.5]), penalty=penalty)
        assert solve_greedily(program) == greedy_by_definition(program)

    def test_greedy_solution_takes_the_first_of_equal_leaves(self) -> None:
        program = EtsProgram([0.25] * 4, [[0], [1], [2], [3]], [0.25] * 4, [0, 0, 1, 1], penalty=1.0, coverage=1.5)
        assert solve_greedily(program) == greedy_by_definition(program) == (0, 2)

    @pytest.mark.parametrize("seconds", [1e-9, 0.01, 10.0])
    @pytest.mark.parametrize("seed", range(10))
    def test_solution_is_never_worse_than_the_greedy_one(self, seed: int, seconds: float) -> None:
        program = random_program(random.Random(seed), 150, coverage=1.45)
        assert solve_by_highs(program, seconds).objective >= program.objective_value(solve_greedily(program))

    def test_a_worse_solution_of_highs_is_not_returned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        program = random_program(random.Random(3), 20, coverage=1.45)
        worst = min(range(20), key=lambda leaf: program.objective_value([leaf]))
        milp_solution = np.zeros(20 + len(program.costs) + program.num_clusters)
        milp_solution[worst] = 1.0

        def milp(*_: object, **__: object) -> OptimizeResult:
            return OptimizeResult(x=milp_solution, status=1, mip_dual_bound=-5.0)

        monkeypatch.setattr("scipy.optimize.milp", milp)
        solution, greedy = solve_by_highs(program, 1.0), solve_greedily(program)
        assert (solution.solver, solution.leaves) == ("greedy", greedy)
        assert solution.gap == pytest.approx(min(5.0, _positive_gains(program)) - program.objective_value(greedy))

    def test_time_of_the_greedy_solution_and_the_matrices_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a clock that advances by three quarters of a second whenever it is read."""
        limits: list[float] = []

        def milp(*_: object, options: dict[str, float], **__: object) -> OptimizeResult:
            limits.append(options["time_limit"])
            return OptimizeResult(x=None, status=1, mip_dual_bound=None)

        monkeypatch.setattr("scipy.optimize.milp", milp)
        program = random_program(random.Random(3), 20, coverage=1.45)
        for seconds in (1.0, 0.5):
            solution = solve_by_highs(program, seconds, itertools.count(0.0, 0.75).__next__)
            assert (solution.solver, solution.leaves) == ("greedy", solve_greedily(program))
            assert solution.gap == pytest.approx(_positive_gains(program) - solution.objective)
        assert limits == [0.25]

    def test_solver_is_not_called_where_the_greedy_solution_reaches_the_bound(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = random_program(random.Random(0), 9, coverage=1.5, penalty=0.0)
        monkeypatch.setattr("scipy.optimize.milp", None)
        solution = solve_by_highs(program, 10.0)
        assert (solution.leaves, solution.gap, solution.solver) == (tuple(range(9)), 0.0, "greedy")

    def test_greedy_solution_is_feasible_and_near_the_optimum(self) -> None:
        for seed in range(100):
            program = random_program(random.Random(seed), 8, coverage=1.45)
            assert solve_greedily(program)
            assert program.objective_value(solve_greedily(program)) >= 0.9 * brute_force(program)

    def test_at_the_time_limit_the_greedy_solution_is_returned_with_an_upper_bound_of_the_gap(self) -> None:
        program = random_program(random.Random(3), 200, coverage=1.45)
        hurried, unhurried = solve_by_highs(program, 1e-9), solve_by_highs(program, 60.0)
        assert hurried.objective <= unhurried.objective + 1e-9 <= hurried.objective + hurried.gap + 2e-9
        if hurried.solver == "greedy":
            assert hurried.leaves == solve_greedily(program)

    def test_expensive_nodes_are_pruned_and_shared_ones_kept(self) -> None:
        """Two leaves of equal value: one on a path of its own of three nodes, one beside a better leaf."""
        program = EtsProgram([0.4, 0.3, 0.3], [[0, 1], [0, 2], [3, 4, 5]], [0.13] * 6, [], penalty=1.0, coverage=0.0)
        assert solve_by_highs(program, 10.0).leaves == (0, 1)

    def test_coverage_keeps_one_leaf_of_each_cluster(self) -> None:
        program = EtsProgram([0.5, 0.5, 0.0], [[0], [1], [2]], [0.25] * 3, [0, 0, 1], penalty=1.0, coverage=1.5)
        assert 2 in solve_by_highs(program, 10.0).leaves
        without = EtsProgram([0.5, 0.5, 0.0], [[0], [1], [2]], [0.25] * 3, [], penalty=1.0, coverage=1.5)
        assert 2 not in solve_by_highs(without, 10.0).leaves
