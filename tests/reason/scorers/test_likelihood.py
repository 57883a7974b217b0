"""The likelihood scorer: no model, no cost, and None for steps without log-probabilities."""

from __future__ import annotations

import asyncio
import math

from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Usage
from reason.scorers.base import Scorer
from reason.scorers.likelihood import LikelihoodScorer
from reason.scorers.none import NoScorer
from search.strategy import ScoredPaths
from search.tree import Step


def score(*paths: list[Step]) -> ScoredPaths:
    bound = LikelihoodScorer().bind("question", (1, 2))
    return asyncio.run(bound.score(paths))


@given(st.lists(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=5), max_size=4))
def test_likelihood_score_is_the_geometric_mean_of_the_step_probabilities(probabilities: list[list[float]]) -> None:
    path = [Step(tuple(range(len(ps))), "x", tuple(map(math.log, ps))) for ps in probabilities]
    [scores] = score(path).scores
    assert scores is not None
    assert all(
        s is not None and math.isclose(s, math.prod(ps) ** (1 / len(ps)), rel_tol=1e-4) and s <= 1  # of a rounded mean
        for s, ps in zip(scores, probabilities, strict=True)
    )


def test_likelihood_scorer_has_empty_usage() -> None:
    assert score([Step((1,), "a", (-0.5,))]).usage == Usage()


def test_likelihood_scorer_skips_a_path_with_a_step_without_logprobs() -> None:
    logged, unlogged = Step((1,), "a", (-1.0,)), Step((1,), "a")
    assert score([logged], [logged, unlogged]).scores == [[math.exp(-1)], None]


def test_likelihood_score_is_zero_for_an_impossible_token_and_never_above_one() -> None:
    assert score([Step((1,), "a", (-math.inf,)), Step((1,), "a", (1e-7,))]).scores == [[0.0, 1.0]]


def test_no_scorer_binds_to_none() -> None:
    scorer: Scorer = NoScorer()
    assert scorer.bind("question", (1,)) is None
    assert not scorer.gives_scores
