"""ETS: its program against brute force and a tree DP, its greedy, its clusters, and what it does to a search."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from search.clustering import cluster, condensed_distances
from search.strategies.ets import Ets
from search.strategies.ets_program import Program, greedy, solve
from search.strategies.rebase import Rebase
from search.strategy import SearchResult
from tests.search.test_level_search import long_winded
from tests.support.toy_search import ToyEngine, run


def random_program(rng: random.Random, leaves: int, *, coverage: float, penalty: float = 1.0) -> Program:
    """A random tree with so many leaves, random values that add up to 1, and random clusters."""
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
    return Program(
        values=[weight / sum(weights) for weight in weights],
        paths=[[number[node] for node in path] for path in paths],
        costs=[cost / (sum(costs) + 1) for cost in costs],
        clusters=[rng.randrange(max(1, leaves // 2)) for _ in range(leaves)] if coverage else [],
        penalty=penalty,
        coverage=coverage,
    )


def brute_force(program: Program) -> float:
    leaves = range(len(program.values))
    return max(
        program.objective(kept) for count in range(1, len(leaves) + 1) for kept in itertools.combinations(leaves, count)
    )


def tree_dp(program: Program) -> float:
    """Without coverage a subtree is kept if its leaves are worth more than its own nodes: one pass from the bottom."""
    below: dict[int, set[int]] = {}
    for path in program.paths:
        for node, child in itertools.pairwise(path):
            below.setdefault(node, set()).add(child)
    value = {path[-1]: program.values[leaf] for leaf, path in enumerate(program.paths)}

    def worth(node: int) -> float:
        return value.get(node, 0.0) - program.price(node) + sum(max(0.0, worth(child)) for child in below.get(node, ()))

    def best_single(node: int) -> float:
        """The best with at least one leaf below `node`."""
        if node in value:
            return worth(node)
        kept = sum(max(0.0, worth(child)) for child in below[node])
        if any(worth(child) > 0 for child in below[node]):
            return kept - program.price(node)
        return max(best_single(child) for child in below[node]) - program.price(node)

    tops = {path[0] for path in program.paths}
    gains = [worth(top) for top in tops if worth(top) > 0]
    return sum(gains) if gains else max(best_single(top) for top in tops)


class TestProgram:
    @pytest.mark.parametrize("seed", range(60))
    def test_it_is_the_best_choice_there_is(self, seed: int) -> None:
        rng = random.Random(seed)
        program = random_program(rng, rng.randint(1, 12 if seed % 6 == 0 else 8), coverage=rng.choice([0, 0.3, 1.5]))
        found = solve(program, 10.0)
        assert (found.gap, found.solver) == (0.0, "highs")
        assert found.objective == pytest.approx(brute_force(program), abs=1e-9)
        assert found.objective == pytest.approx(program.objective(found.leaves), abs=1e-12)

    @pytest.mark.parametrize("seed", range(60))
    def test_without_coverage_it_equals_the_tree_dp(self, seed: int) -> None:
        rng = random.Random(1000 + seed)
        program = random_program(rng, rng.randint(1, 40), coverage=0.0, penalty=rng.choice([0.2, 1.0, 3.0]))
        assert solve(program, 10.0).objective == pytest.approx(tree_dp(program), abs=1e-9)

    def test_without_a_penalty_every_leaf_stays(self) -> None:
        program = random_program(random.Random(0), 9, coverage=1.5, penalty=0.0)
        assert solve(program, 10.0).leaves == greedy(program) == tuple(range(9))

    def test_the_greedy_is_feasible_and_near(self) -> None:
        for seed in range(100):
            program = random_program(random.Random(seed), 8, coverage=1.45)
            assert greedy(program)
            assert program.objective(greedy(program)) >= 0.9 * brute_force(program)

    def test_out_of_time_the_greedy_steps_in_and_the_gap_is_an_upper_bound(self) -> None:
        program = random_program(random.Random(3), 200, coverage=1.45)
        hurried, unhurried = solve(program, 1e-9), solve(program, 60.0)
        assert hurried.objective <= unhurried.objective + 1e-9 <= hurried.objective + hurried.gap + 2e-9
        if hurried.solver == "greedy":
            assert hurried.leaves == greedy(program)

    def test_dear_nodes_go_and_shared_ones_stay(self) -> None:
        """Two leaves of equal value: one on a path of its own of three nodes, one beside a better leaf."""
        program = Program([0.4, 0.3, 0.3], [[0, 1], [0, 2], [3, 4, 5]], [0.13] * 6, [], penalty=1.0, coverage=0.0)
        assert solve(program, 10.0).leaves == (0, 1)

    def test_coverage_keeps_one_of_every_kind(self) -> None:
        program = Program([0.5, 0.5, 0.0], [[0], [1], [2]], [0.25] * 3, [0, 0, 1], penalty=1.0, coverage=1.5)
        assert 2 in solve(program, 10.0).leaves
        without = Program([0.5, 0.5, 0.0], [[0], [1], [2]], [0.25] * 3, [], penalty=1.0, coverage=1.5)
        assert 2 not in solve(without, 10.0).leaves


class TestClusters:
    def test_the_same_direction_is_the_same(self) -> None:
        vectors = np.array([[1, 0], [2, 0], [0, 1], [0, 3], [1, 0.01]], dtype=np.float32)
        assert cluster(vectors, cut=0.05) == [0, 0, 1, 1, 0]

    def test_everything_is_one_or_nothing_is(self) -> None:
        vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
        assert cluster(vectors, cut=3.0) == [0] * 20
        assert cluster(vectors, cut=1e-9) == list(range(20))

    def test_one_vector_and_zeros_are_no_trouble(self) -> None:
        assert cluster(np.ones((1, 3), dtype=np.float32), cut=0.1) == [0]
        assert cluster(np.array([[0, 0], [1, 0], [0, 0]], dtype=np.float32), cut=0.1) == [0, 1, 0]

    def test_distances_are_scipys(self) -> None:
        from scipy.spatial.distance import pdist

        vectors = np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32)
        assert np.allclose(condensed_distances(vectors), pdist(vectors.astype(np.float64), "cosine"), atol=1e-6)


class TestSearch:
    def test_less_kv_than_rebase_at_the_same_width(self) -> None:
        mean = {}
        for name, strategy in {"ets": Ets(n=32), "rebase": Rebase(n=32)}.items():
            result = run(strategy, engine=ToyEngine(long_winded))
            mean[name] = np.mean([selection.kept_tokens for selection in result.selections])
        assert mean["ets"] < mean["rebase"]

    def test_the_whole_width_goes_to_those_kept(self) -> None:
        for decision in run(Ets(n=16), engine=ToyEngine(long_winded)).selections:
            assert sum(decision.widths) == 16
            assert set(decision.reasons.values()) <= {"score", "redundancy", "cost"}
            assert set(decision.reasons) == {
                node for node, width in zip(decision.nodes, decision.widths, strict=True) if not width
            }

    def test_cover_first_lets_no_kept_idea_starve(self) -> None:
        first = run(Ets(n=16, cover_first=True), engine=ToyEngine(long_winded)).selections[0]
        texts = self.kinds(run(Ets(n=16), engine=ToyEngine(long_winded)), first.nodes)
        alive = {texts[node] for node, width in zip(first.nodes, first.widths, strict=True) if width}
        assert len(alive) == first.note["covered"]

    @staticmethod
    def kinds(result: SearchResult, nodes: Sequence[int]) -> dict[int, str]:
        return {node: result.tree.nodes[node].step.text.strip()[-2] for node in nodes}

    def test_tokens_can_be_what_a_node_costs(self) -> None:
        by_tokens = run(Ets(n=16, cost="tokens"), engine=ToyEngine(long_winded))
        assert by_tokens.best is not None

    def test_no_embedder_is_needed_without_coverage_and_missed_with_it(self) -> None:
        assert not Ets(coverage=0).needs_embedder
        assert run(Ets(n=8, coverage=0), embedder=None).best is not None
        with pytest.raises(ValueError, match="was given no embedder"):
            run(Ets(n=8), embedder=None, engine=ToyEngine(long_winded))

    @pytest.mark.parametrize(
        ("knobs", "message"),
        [
            ({"penalty": -1}, "penalty must be a number >= 0, got -1"),
            ({"coverage": "much"}, "coverage must be a number >= 0, got 'much'"),
            ({"cost": "bytes"}, "cost must be one of nodes, tokens; got 'bytes'"),
            ({"cover_first": 1}, "cover_first must be true or false, got 1"),
            ({"solver_seconds": 0}, "solver_seconds must be a number > 0, got 0"),
        ],
    )
    def test_nonsense_is_refused_by_name(self, knobs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Ets(**knobs)
