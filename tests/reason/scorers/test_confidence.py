"""The scorer that reads the writing model's confidence, alone and in searches over the toy engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import reason
from decoding.core import Generation, GenerationRequest
from reason import ConfigError
from reason.scorers.confidence import ConfidenceScorer
from search.confidence import MAX_CONFIDENCE
from search.strategies.best_of_n import BestOfN
from search.strategies.self_consistency import SelfConsistency
from search.strategies.token_search import TokenSearch
from search.tree import SearchTree, Step
from tests.support.searches import search_classes
from tests.support.toy_search import ToyEngine, run_search


def step_of(*confidences: float) -> Step:
    tokens = tuple(range(1, len(confidences) + 1))
    return Step(tokens, "x" * len(tokens), confidences=np.array(confidences, dtype=np.float32))


def score(scorer: ConfidenceScorer, *path: Step) -> Any:
    return asyncio.run(scorer.score([path])).scores[0]


class SureEngine(ToyEngine):
    """Is sure of its tokens where the answer is even, and unsure where it is odd; `sees` says whether it tells so."""

    sees = True

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        assert {request.num_top for request in requests} == {3}
        return await super().generate(requests)

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        plain = super().continue_prefix(request)
        if not self.sees:
            return plain
        sureness = -12.0 if bytes(plain.tokens[:-1]).rstrip(b"}.")[-1:] in b"02468" else -2.0
        top = np.full((len(plain.tokens), 3), sureness, dtype=np.float32)
        return Generation(
            tokens=plain.tokens, logprobs=plain.logprobs, finish=plain.finish, usage=plain.usage, top_logprobs=top
        )


class BlindEngine(SureEngine):
    sees = False


@pytest.mark.parametrize(("measure", "expected"), [("mean", 5.0), ("window", 2.0), ("bottom", 2.5), ("tail", 6.0)])
def test_path_is_scored_as_a_whole_however_it_is_cut_into_steps(measure: Any, expected: float) -> None:
    scorer = ConfidenceScorer(measure=measure, window=2, bottom=0.5, tail=2)
    parts = (9.0, 3.0, 1.0), (5.0, 7.0)
    assert score(scorer, step_of(*parts[0], *parts[1])) == [pytest.approx(expected / MAX_CONFIDENCE)]
    assert score(scorer, *(step_of(*part) for part in parts)) == [None, pytest.approx(expected / MAX_CONFIDENCE)]


def test_votes_weighted_by_scores_have_the_ratio_of_the_confidences() -> None:
    (weak,), (strong,) = score(ConfidenceScorer(), step_of(8.0)), score(ConfidenceScorer(), step_of(20.0))
    assert strong / weak == pytest.approx(20 / 8)
    assert 0 <= weak < strong <= 1


def test_path_with_a_step_that_was_not_measured_has_no_score() -> None:
    assert score(ConfidenceScorer(), step_of(3.0), Step((1,), "x")) is None
    assert score(ConfidenceScorer(), step_of(float("nan"))) is None
    assert score(ConfidenceScorer()) is None


# those over tokens ask for likely tokens of their own
@pytest.mark.parametrize("name", sorted(search_classes().keys() - search_classes(TokenSearch).keys()))
def test_every_search_runs_with_it_and_scores_each_finished_solution(name: str) -> None:
    strategy: Any = search_classes()[name](n=4)
    result = run_search(strategy, engine=SureEngine(), scorer=ConfidenceScorer(num_top=3), num_top=3)
    assert result.candidates
    for candidate in result.candidates:
        assert candidate.score is not None
        assert 0 <= candidate.score <= 1


def test_best_of_n_takes_the_solution_that_the_model_was_surest_of() -> None:
    result = run_search(BestOfN(n=8), engine=SureEngine(), scorer=ConfidenceScorer(num_top=3), num_top=3)
    answers = {c.answer for c in result.candidates}
    assert answers & {"1", "3", "5"}
    assert result.score == pytest.approx(12 / MAX_CONFIDENCE)


def test_only_the_kept_share_of_the_solutions_votes() -> None:
    strategy = SelfConsistency(n=12, select="majority", keep=0.25)
    result = run_search(strategy, engine=SureEngine(), scorer=ConfidenceScorer(num_top=3), num_top=3)
    assert sum(result.votes.values()) == 3
    assert set(result.votes) <= {"0", "2", "4"}
    everyone = run_search(SelfConsistency(n=12), engine=SureEngine(), scorer=ConfidenceScorer(num_top=3), num_top=3)
    assert sum(everyone.votes.values()) == 12


def test_engine_without_the_numbers_leaves_solutions_unscored_and_they_vote() -> None:
    strategy = SelfConsistency(n=6, select="weighted", keep=0.5)
    result = run_search(strategy, engine=BlindEngine(measures=False), scorer=ConfidenceScorer(num_top=3), num_top=3)
    assert all(candidate.score is None for candidate in result.candidates)
    assert sum(result.votes.values()) == 6


def test_saved_trees_have_no_number_per_token_of_it() -> None:
    result = run_search(BestOfN(n=2), engine=SureEngine(), scorer=ConfidenceScorer(num_top=3), num_top=3)
    saved = result.tree.to_dict()
    assert all({"confidences", "entropies"}.isdisjoint(node) for node in saved["nodes"])
    assert SearchTree.from_dict(saved).nodes == result.tree.nodes


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"measure": "median"}, "measure must be one of mean, window, bottom, tail; got 'median'"),
        ({"window": 0}, "window must be an int >= 1, got 0"),
        ({"bottom": 0}, r"bottom must be in \(0, 1\], got 0"),
        ({"tail": 0}, "tail must be an int >= 1, got 0"),
        ({"num_top": 21}, "num_top must be an int from 1 to 20, got 21"),
    ],
)
def test_wrong_knob_is_refused_by_name(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConfidenceScorer(**knobs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["engine=openai", "scorer=confidence"],
            "^scorer=confidence reads the log-probabilities of the most likely tokens, which engine=openai has only "
            r"where it requests them; choose a model whose tokenizer is here .* and set engine\.logprobs=true$",
        ),
        (
            ["engine=openai", "step=entropy"],
            "^step=entropy reads the log-probabilities of the most likely tokens, which engine=openai has only",
        ),
        (
            ["engine=sglang", "scorer=confidence", "search.sampling.max_tokens=32768"],
            r"^engine\.max_reply_mb=16 is too small for .* 20 likely tokens .* 32768, .*; set engine\.max_reply_mb=30$",
        ),
        (
            ["router=reward_threshold", "scorer=confidence"],
            "^this router reads scores of steps, and scorer=confidence scores a path by all of its tokens",
        ),
    ],
)
def test_setup_that_cannot_work_is_refused_before_a_model_loads(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reason.load("search=self_consistency", *settings)
