"""The exact solver of ETS's program on its tree, against brute force, a simpler dynamic program, and HiGHS."""

from __future__ import annotations

import random

import pytest

from search.strategies.ets_fronts import solve_by_fronts
from search.strategies.ets_program import EtsProgram, KeptLeaves, solve_by_highs
from tests.support.ets_programs import brute_force, random_program, tree_dp


def solve(program: EtsProgram) -> KeptLeaves:
    kept_leaves = solve_by_fronts(program)
    assert kept_leaves is not None
    assert (kept_leaves.gap, kept_leaves.solver) == (0.0, "fronts")
    assert kept_leaves.objective == pytest.approx(program.objective_value(kept_leaves.leaves), abs=1e-12)
    return kept_leaves


@pytest.mark.parametrize("penalty", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("coverage", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("seed", range(25))
def test_solution_equals_brute_force(seed: int, coverage: float, penalty: float) -> None:
    rng = random.Random(seed)
    program = random_program(rng, rng.randint(1, 9), coverage=coverage, penalty=penalty)
    assert solve(program).objective == pytest.approx(brute_force(program), abs=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_solution_without_coverage_equals_the_tree_dp(seed: int) -> None:
    rng = random.Random(1000 + seed)
    program = random_program(rng, rng.randint(1, 200), coverage=0.0, penalty=rng.choice([0.2, 1.0, 3.0]))
    assert solve(program).objective == pytest.approx(tree_dp(program), abs=1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_solution_equals_that_of_highs(seed: int) -> None:
    """With few clusters, of which many leaves compete for each; HiGHS accepts gaps of 1e-6."""
    program = random_program(random.Random(seed), 60, coverage=1.5, penalty=3.0, clusters=6)
    assert solve(program).objective == pytest.approx(solve_by_highs(program, 10.0).objective, abs=2e-6)


def test_without_a_penalty_every_leaf_is_kept() -> None:
    for seed in range(30):
        program = random_program(random.Random(seed), 40, coverage=1.5, penalty=0.0)
        assert solve(program).leaves == tuple(range(40))


def test_one_leaf_is_kept_though_none_is_worth_its_nodes() -> None:
    program = EtsProgram([0.5, 0.5], [[0, 1], [0, 2]], [0.4, 0.2, 0.1], [], penalty=3.0, coverage=0.0)
    assert solve(program).leaves == (1,)
    cheaper = EtsProgram([0.5, 0.5], [[0, 1], [0, 2]], [0.4, 0.1, 0.1], [], penalty=3.0, coverage=0.0)
    assert solve(cheaper).leaves == (0, 1)  # the second pays for its own node, not for the first one


def test_of_two_leaves_of_one_cluster_the_cheaper_one_covers_it() -> None:
    program = EtsProgram([0.0, 0.0, 1.0], [[0], [1], [2]], [0.2, 0.1, 0.1], [0, 0, 1], penalty=1.0, coverage=1.0)
    assert solve(program).leaves == (1, 2)


def test_paths_may_be_longer_than_the_stack_of_python() -> None:
    path = list(range(5000))
    program = EtsProgram([0.4, 0.6], [path, [*path[:-1], 5000]], [1e-5] * 5001, [0, 1], penalty=1.0, coverage=1.0)
    assert solve(program).leaves == (0, 1)


def test_many_contested_clusters_are_left_to_highs() -> None:
    """The work of twenty clusters, each with a leaf under either of two nodes, doubles with each of them."""
    paths = [[top, 2 + leaf] for leaf, top in enumerate([0] * 20 + [1] * 20)]
    costs = [0.01 * (1 + node % 7) + 1e-5 * node for node in range(42)]
    program = EtsProgram([0.0] * 40, paths, costs, [*range(20), *range(20)], penalty=1.0, coverage=1.0)
    assert solve_by_fronts(program) is None
    assert solve_by_highs(program, 10.0).gap == 0.0
