"""Particle filtering and particle Gibbs: what is resampled and when, what ended ones cost and how they vote."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from decoding.core import Tokens
from search.strategies.beam_search import BeamSearch
from search.strategies.particle_filter import ParticleFilter
from search.strategies.particle_gibbs import ParticleGibbs
from search.strategy import Budget, SearchResult
from tests.support.toy_search import (
    ConstantScorer,
    SomeStepsScorer,
    ToyEngine,
    ToyScorer,
    UnsteadyEngine,
    nodes_by_parent,
    run_search,
    write_five_steps,
    write_solution,
)


def odds(result: SearchResult, node: int) -> float:
    score = result.tree.nodes[node].score
    assert score is not None
    return score / (1 - score)


def assert_resampled(widths: Sequence[int], weights: Sequence[float], count: int) -> None:
    """The numbers of copies are less than one away from what the weights ask for."""
    assert sum(widths) == count
    for width, weight in zip(widths, weights, strict=True):
        assert abs(width - count * weight / math.fsum(weights)) < 1 + 1e-9


class TestParticleFilter:
    @pytest.mark.parametrize("seed", range(40))
    def test_open_particles_are_resampled_by_their_odds(self, seed: int) -> None:
        temperature = (0.5, 1.0, 3.0)[seed % 3]
        strategy = ParticleFilter(n=4 + seed % 9, temperature=temperature)
        result = run_search(strategy, engine=ToyEngine(write_five_steps), seed=seed)
        assert len(result.selections) == 5
        below = nodes_by_parent(result.tree)
        for decision in result.selections:
            weights = [odds(result, node) ** (1 / temperature) for node in decision.nodes]
            assert_resampled(decision.widths, weights, strategy.n)
            assert [len(below.get(node, [])) for node in decision.nodes] == list(decision.widths)

    @pytest.mark.parametrize("seed", range(30))
    def test_weights_are_multiplied_until_too_few_particles_are_effective(self, seed: int) -> None:
        strategy = ParticleFilter(n=12, ess_threshold=(0.2, 0.4, 0.6)[seed % 3], temperature=2.0)
        result = run_search(strategy, engine=ToyEngine(write_five_steps), seed=seed)
        products: dict[int, float] = {-1: 1.0}
        for decision in result.selections:
            parents = [result.tree.nodes[node].parent for node in decision.nodes]
            weights = [
                products[parent] * odds(result, node) ** 0.5
                for parent, node in zip(parents, decision.nodes, strict=True)
            ]
            ess = math.fsum(weights) ** 2 / math.fsum(weight**2 for weight in weights)
            assert decision.note["effective_particles"] == pytest.approx(ess, abs=1e-3)
            if ess < strategy.ess_threshold * strategy.n:
                assert_resampled(decision.widths, weights, strategy.n)
                weights = [1.0] * len(weights)
            else:
                assert set(decision.widths) == {1}
            products |= zip(decision.nodes, weights, strict=True)
        assert 0 < len(result.selections) <= 5

    @pytest.mark.parametrize("engine", [ToyEngine(), ToyEngine(write_five_steps)])
    def test_particles_that_are_never_resampled_are_independent_samples(self, engine: ToyEngine) -> None:
        samples, filtered = (
            run_search(strategy, engine=engine)
            for strategy in (BeamSearch(n=8, beam_width=1), ParticleFilter(n=8, ess_threshold=0))
        )
        assert filtered.tree.to_dict() == samples.tree.to_dict()
        assert (filtered.votes, filtered.best) == (samples.votes, samples.best)

    @pytest.mark.parametrize("seed", range(20))
    def test_all_particles_vote_and_copies_of_ended_ones_cost_nothing(self, seed: int) -> None:
        result = run_search(ParticleFilter(n=16, select="majority"), seed=seed)
        assert len(result.candidates) == 16
        assert sum(result.votes.values()) == 16
        assert result.usage.tokens == sum(len(node.step.tokens) for node in result.tree.nodes)
        copies = Counter(candidate.node for candidate in result.candidates)
        ended = [i for i, node in enumerate(result.tree.nodes) if node.finish is not None]
        assert set(copies) <= set(ended)

    def test_ended_particles_are_copied_and_dropped_by_their_scores(self) -> None:
        def write(seed: int, prefix: Tokens) -> str:
            """Some paths end at once with 1 or 2; the others go on for a step."""
            is_first = b"\n\n" not in bytes(prefix)
            return ("\\boxed{1}", "\\boxed{2}", "More.\n\n\\boxed{3}")[seed % 3] if is_first else "\\boxed{3}"

        class Judge(ToyScorer):
            @staticmethod
            def score_text(text: str) -> float:
                return 0.999 if "1" in text else 0.5 if "3" in text else 0.01

        result = run_search(ParticleFilter(n=16, select="majority"), engine=ToyEngine(write), scorer=Judge())
        (decision,) = result.selections
        ones = sum("1" in node.step.text for node in result.tree.nodes)
        assert 0 < ones < 14
        assert result.votes["1"] > ones  # copied
        assert "2" not in result.votes  # dropped, though it has ended
        assert not any("2" in result.tree.nodes[c.node].step.text for c in result.candidates)
        assert sum(decision.widths) + sum(c.answer == "1" for c in result.candidates) == 16

    def test_likelihood_resamples_by_the_score(self) -> None:
        result = run_search(ParticleFilter(n=12, weights="likelihood"), engine=ToyEngine(write_five_steps))
        for decision in result.selections:
            assert_resampled(decision.widths, [result.tree.nodes[node].score or 0 for node in decision.nodes], 12)

    def test_paths_without_a_score_have_the_median_weight(self) -> None:
        for seed in range(20):
            result = run_search(
                ParticleFilter(n=9), engine=ToyEngine(write_five_steps), scorer=SomeStepsScorer(), seed=seed
            )
            for decision in result.selections:
                known = sorted(
                    odds(result, node) for node in decision.nodes if result.tree.nodes[node].score is not None
                )
                low, high = (known[(len(known) - 1) // 2], known[len(known) // 2]) if known else (1.0, 1.0)
                median = math.sqrt(low * high)
                weights = [
                    median if result.tree.nodes[node].score is None else odds(result, node) for node in decision.nodes
                ]
                assert_resampled(decision.widths, weights, 9)

    def test_equal_particles_go_on_once_each(self) -> None:
        result = run_search(ParticleFilter(n=8), engine=ToyEngine(write_five_steps), scorer=ConstantScorer())
        assert all(set(decision.widths) == {1} for decision in result.selections)

    def test_single_particle_is_a_sample(self) -> None:
        result = run_search(ParticleFilter(n=1), engine=ToyEngine(write_five_steps))
        assert [decision.widths for decision in result.selections] == [(1,)] * 5
        assert len(result.candidates) == 1


@pytest.mark.parametrize("strategy", [ParticleFilter(n=8), ParticleGibbs(n=8, num_references=2)])
@pytest.mark.parametrize("seed", range(6))
def test_resampling_does_not_depend_on_which_particle_is_faster(strategy: ParticleFilter, seed: int) -> None:
    results = [run_search(strategy, engine=UnsteadyEngine(order), seed=seed) for order in range(4)]
    assert len({str((r.tree.to_dict(), r.votes, r.candidates)) for r in results}) == 1


class TestParticleGibbs:
    @pytest.mark.parametrize("seed", range(10))
    def test_one_iteration_is_the_particle_filter(self, seed: int) -> None:
        one, other = (
            run_search(strategy, seed=seed) for strategy in (ParticleGibbs(n=8, num_iterations=1), ParticleFilter(n=8))
        )
        assert (one.tree.to_dict(), one.candidates) == (other.tree.to_dict(), other.candidates)

    @pytest.mark.parametrize("num_references", [0, 1, 3])
    @pytest.mark.parametrize("write", [write_solution, write_five_steps])
    def test_references_vote_again_and_are_not_written_again(
        self, num_references: int, write: Callable[[int, Tokens], str]
    ) -> None:
        for seed in range(10):
            strategy = ParticleGibbs(n=8, num_iterations=3, num_references=num_references, select="majority")
            result = run_search(strategy, engine=ToyEngine(write), seed=seed)
            nodes = [candidate.node for candidate in result.candidates]
            iterations = [Counter(nodes[at : at + 8]) for at in (0, 8, 16)]
            assert len(nodes) == 24
            assert len(nodes_by_parent(result.tree)[-1]) == 8 + 2 * (8 - num_references)
            for before, after in pairwise(iterations):
                assert (before & after).total() >= num_references

    @pytest.mark.parametrize("seed", range(12))
    def test_first_steps_of_references_are_resampled_with_the_others(self, seed: int) -> None:
        strategy = ParticleGibbs(n=8, num_iterations=2, num_references=2)
        result = run_search(strategy, engine=ToyEngine(write_five_steps), seed=seed)
        references = [candidate.node for candidate in result.candidates[8:10]]
        assert set(references) <= {candidate.node for candidate in result.candidates[:8]}
        first, second = result.selections[:5], result.selections[5:]
        assert [sum(decision.widths) for decision in (*first, *second)] == [8] * 5 + [6] * 5
        for level, decision in enumerate(second):
            prefixes = [result.tree.path_nodes(node)[level] for node in references]
            free = [node for node in decision.nodes if node not in prefixes]
            assert len(free) == 6
            total = math.fsum(odds(result, node) for node in (*free, *prefixes))
            widths = dict(zip(decision.nodes, decision.widths, strict=True))
            for node in {*free, *prefixes}:
                share = 6 * (free + prefixes).count(node) * odds(result, node) / total
                assert abs(widths.get(node, 0) - share) < prefixes.count(node) + 1e-9 + (node in free)

    def test_budget_ends_it_between_iterations_too(self) -> None:
        whole = run_search(ParticleGibbs(n=8, num_iterations=4)).usage.tokens
        for tokens in range(1, whole, 37):
            result = run_search(ParticleGibbs(n=8, num_iterations=4), budget=Budget(tokens=tokens))
            assert result.usage.tokens <= tokens
            assert result.stop_reason == "budget"

    def test_wrong_knobs_are_refused_by_name(self) -> None:
        with pytest.raises(ValueError, match="num_references must be below n=4, got 4"):
            ParticleGibbs(n=4, num_references=4)
        with pytest.raises(ValueError, match="num_iterations must be an int >= 1, got 0"):
            ParticleGibbs(num_iterations=0)
        for strategy in (ParticleFilter, ParticleGibbs):
            with pytest.raises(ValueError, match="weights must be one of odds, likelihood; got 'logit'"):
                strategy(weights="logit")
            with pytest.raises(ValueError, match=r"ess_threshold must be in \[0, 1\], got 2"):
                strategy(ess_threshold=2)
            with pytest.raises(ValueError, match="temperature must be a number > 0, got 0"):
                strategy(temperature=0)
