"""Scores on a scale of their own: what each normalisation keeps, and that searches by ranks do not see a scale."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.allocation import NORMALISATIONS, allocate_by_softmax, normalise_among, normalise_scores
from search.strategies.astar import AStar
from search.strategies.diverse_beam import DiverseBeam
from search.strategies.ets import Ets
from search.strategies.mcts import Mcts
from search.strategies.particle_filter import ParticleFilter
from search.strategies.particle_gibbs import ParticleGibbs
from search.strategies.rebase import Rebase
from search.strategy import SearchResult, Strategy
from tests.support.toy_search import ToyEngine, ToyScorer, run_search, write_five_steps

SCORES = st.lists(st.one_of(st.sampled_from([0.0, 1.0, 0.5, 1e-27, 1e-300]), st.floats(0, 1)), max_size=20)
MILD = st.lists(st.integers(1, 99).map(lambda percent: percent / 100), min_size=1, max_size=16)


class TestNormaliseScores:
    @given(SCORES, st.sampled_from(NORMALISATIONS))
    def test_result_is_finite_and_in_the_order_of_the_scores(self, scores: list[float], how: str) -> None:
        values = normalise_scores(scores, how)
        assert all(map(math.isfinite, values))
        in_order = [value for _, value in sorted(zip(scores, values, strict=True))]
        assert in_order == sorted(in_order)
        assert len({*zip(scores, values, strict=True)}) == len(set(scores))

    @given(MILD)
    def test_rank_is_the_share_of_the_others_that_are_worse(self, scores: list[float]) -> None:
        for i, rank in enumerate(normalise_scores(scores, "rank")):
            others = scores[:i] + scores[i + 1 :]
            wins = sum((scores[i] > other) + 0.5 * (scores[i] == other) for other in others)
            assert rank == pytest.approx(wins / len(others) if others else 0.5)

    @given(MILD, st.sampled_from([lambda s: s**20, lambda s: 1e-27 * s, lambda s: 1 - (1 - s) ** 3]))
    def test_ranks_do_not_depend_on_the_scale(self, scores: list[float], change: Callable[[float], float]) -> None:
        assert normalise_scores([change(score) for score in scores], "rank") == normalise_scores(scores, "rank")

    @given(MILD, st.floats(1e-9, 1))
    def test_zscores_have_mean_0_and_deviation_1_whatever_the_unit(self, scores: list[float], unit: float) -> None:
        values = normalise_scores([unit * score for score in scores], "zscore")
        assert values == pytest.approx(normalise_scores(scores, "zscore"), abs=1e-4)
        if len(set(scores)) > 1:
            assert math.fsum(values) == pytest.approx(0, abs=1e-6)
            assert math.fsum(v * v for v in values) == pytest.approx(len(values))

    @given(MILD)
    def test_softmax_of_logits_is_proportional_to_the_odds(self, scores: list[float]) -> None:
        odds = [score / (1 - score) for score in scores]
        weights = [math.exp(value) for value in normalise_scores(scores, "logit")]
        assert weights == pytest.approx(odds, rel=1e-6)

    @given(MILD, SCORES, st.sampled_from(NORMALISATIONS))
    def test_values_among_more_scores_are_those_that_all_get_together(
        self, some: list[float], more: list[float], how: str
    ) -> None:
        together = normalise_scores([*some, *more], how)
        ordered = sorted([*more, *some])
        alone = [normalise_among(score, how, ordered) for score in some]
        assert alone == pytest.approx(together[: len(some)])

    def test_products_get_an_allocation_by_rank_where_they_get_none_by_size(self) -> None:
        products = [1e-27, 1e-9, 1e-5, 1e-3]
        assert allocate_by_softmax(products, 16, 0.2) == [4, 4, 4, 4]
        assert allocate_by_softmax(normalise_scores(products, "rank"), 16, 0.2) == [0, 1, 2, 13]


class TinyScorer(ToyScorer):
    """The toy's scores to the power of 20: the same order, from 1 down to 1e-60."""

    @staticmethod
    def score_text(text: str) -> float:
        return ToyScorer.score_text(text) ** 20


SEARCHES: list[Callable[[str], Strategy]] = [
    lambda how: Rebase(n=9, normalise=how),
    lambda how: Ets(n=9, coverage=0, normalise=how),
    lambda how: DiverseBeam(n=8, diversity=5.0, ngram=1, normalise=how),
    lambda how: Mcts(n=12, normalise=how, select="majority"),
    lambda how: AStar(n=4, normalise=how),
    lambda how: ParticleFilter(n=8, temperature=0.2, normalise=how),
    lambda how: ParticleGibbs(n=8, temperature=0.2, normalise=how),
]


def describe_tree(result: SearchResult) -> list[tuple[int, str]]:
    return [(node.parent, node.step.text) for node in result.tree.nodes]


@pytest.mark.parametrize("make", SEARCHES)
def test_search_by_ranks_writes_the_same_tree_whatever_the_scale_and_otherwise_it_does_not(
    make: Callable[[str], Strategy],
) -> None:
    def grow(how: str, scorer: ToyScorer) -> list[tuple[int, str]]:
        return describe_tree(run_search(make(how), engine=ToyEngine(write_five_steps), scorer=scorer))

    assert grow("rank", ToyScorer()) == grow("rank", TinyScorer())
    assert grow("none", ToyScorer()) != grow("none", TinyScorer())


def test_unknown_normalisation_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"normalise.*none.*rank.*zscore.*logit"):
        Rebase(normalise="ranks")
    with pytest.raises(ValueError, match="normalise must be none or rank in mcts"):
        Mcts(normalise="zscore")
    with pytest.raises(ValueError, match="normalise must be none, rank or zscore"):
        ParticleFilter(normalise="logit")
