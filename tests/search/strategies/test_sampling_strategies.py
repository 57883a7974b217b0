"""Best-of-N and self-consistency: the chosen solution, early stops, and edge cases."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from decoding.core import SamplingParams, Tokens
from search.strategies.best_of_n import BestOfN
from search.strategies.self_consistency import SelfConsistency
from search.strategy import Budget, ScoredPaths, SearchResult
from search.tree import Step
from tests.support.toy_search import ROOT, ToyEngine, extract_answer, toy_resources

ANSWERS = ["1", "2", "2", "3", "1", "2"]


class Dictated:
    """An engine whose sample k has the k-th text."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = iter(texts)

    def __call__(self, seed: int, prefix: Tokens) -> str:
        return next(self.texts)


class ByAnswer:
    """Scores a path by the answer it ends with."""

    def __init__(self, table: dict[str, float]) -> None:
        self.table = table

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        return ScoredPaths([[self.table[extract_answer(step.text) or ""] for step in path] for path in paths])


def sampled(answers: Sequence[str], **knobs: float) -> SearchResult:
    """Self-consistency over samples that end with these answers."""
    engine = ToyEngine(Dictated([f"\\boxed{{{a}}}" for a in answers]))
    return asyncio.run(SelfConsistency(n=len(answers), **knobs)(ROOT, toy_resources(engine=engine)))  # type: ignore[arg-type]


def test_self_consistency_stops_at_its_stop_error() -> None:
    early = sampled(["7"] * 8 + ["8"] * 8, stop_error=0.05)
    assert (early.stop_reason, len(early.candidates), early.votes) == ("decided", 4, {"7": 4.0})
    stricter = sampled(["7"] * 8 + ["8"] * 8, stop_error=0.002)
    assert (stricter.stop_reason, len(stricter.candidates)) == ("decided", 8)


def test_self_consistency_stops_at_the_share_of_the_leading_answer_behind_its_warm_up() -> None:
    answers = ["8", *"7777777", *"8" * 8]  # 7 of 8 is .875
    early = sampled(answers, stop_share=0.8, warm_up=4)
    assert (early.stop_reason, early.votes) == ("decided", {"8": 1.0, "7": 4.0})
    assert sampled(answers, stop_share=0.8, warm_up=6).votes == {"8": 1.0, "7": 5.0}
    assert sampled(answers, stop_share=0.95, warm_up=1).votes == {"8": 1.0}  # the first alone has all votes
    whole, never = sampled(answers), sampled(answers, stop_share=0.9, warm_up=2)
    assert (never.stop_reason, never.tree.to_dict()) == ("done", whole.tree.to_dict())


@pytest.mark.parametrize(("select", "count"), [("majority", 6), ("weighted", 4)])
def test_share_of_votes_is_weighted_where_the_vote_is(select: str, count: int) -> None:
    """Of 1, 2, 2, 3, 1, 2 no answer has .6 by count; the first 2 weighs 8 of 10."""
    strategy = SelfConsistency(n=6, select=select, stop_share=0.6, warm_up=4)
    result = solve(strategy, {"1": 0.05, "2": 0.4, "3": 0.1})
    assert (len(result.candidates), chosen(result)) == (count, "2")


def test_self_consistency_with_an_open_vote_draws_the_same_samples_in_waves() -> None:
    answers = ["8", "7"] * 7 + ["7", "8"]  # the last one decides
    whole, waves = sampled(answers), sampled(answers, stop_error=0.05)
    assert (waves.stop_reason, waves.tree.to_dict()) == ("done", whole.tree.to_dict())


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"stop_error": 0.7}, r"stop_error must be in \[0, 0.5\], got 0.7"),
        ({"stop_error": 0.1, "select": "best"}, "stop_error needs select=majority"),
        ({"stop_share": 0.0}, r"stop_share must be .*0"),
        ({"stop_share": 0.9, "select": "best"}, "stop_share needs select=majority or weighted, got best"),
        ({"stop_share": 0.9, "keep": 0.5}, "stop_share needs keep=1"),
        ({"stop_share": 0.9, "stop_error": 0.1}, "leave one of them null"),
        ({"stop_share": 0.9, "n": 8}, "warm_up must be below n=8, got 8"),
    ],
)
def test_wrong_stop_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SelfConsistency(**knobs)


def solve(strategy: BestOfN | SelfConsistency, scores: dict[str, float] | None = None) -> SearchResult:
    engine = ToyEngine(Dictated([f"\\boxed{{{a}}}" for a in ANSWERS]))
    scorer = None if scores is None else ByAnswer(scores)
    return asyncio.run(strategy(ROOT, toy_resources(engine=engine, scorer=scorer)))


def chosen(result: SearchResult) -> str | None:
    assert result.best is not None
    return extract_answer(result.tree.path_text(result.best))


SCORES = {"1": 0.8, "2": 0.4, "3": 0.9}


def test_best_of_n_takes_the_highest_score() -> None:
    assert chosen(result := solve(BestOfN(n=6), SCORES)) == "3"
    assert (result.score, result.votes) == (0.9, {"1": 0.8, "2": 0.4, "3": 0.9})


def test_self_consistency_takes_the_most_frequent_answer_with_or_without_scores() -> None:
    for scores in (None, SCORES):
        result = solve(SelfConsistency(n=6), scores)
        assert (chosen(result), result.votes) == ("2", {"1": 2.0, "2": 3.0, "3": 1.0})


def test_weighted_selection_sums_scores() -> None:
    assert chosen(solve(SelfConsistency(n=6, select="weighted"), SCORES)) == "1"


def test_best_of_n_equals_selecting_the_best() -> None:
    one, other = solve(SelfConsistency(n=6, select="best"), SCORES), solve(BestOfN(n=6), SCORES)
    assert (one.best, one.votes, one.candidates) == (other.best, other.votes, other.candidates)


def test_only_score_based_selections_need_a_scorer() -> None:
    assert BestOfN().needs_scorer
    assert not SelfConsistency().needs_scorer
    assert SelfConsistency(select="weighted").needs_scorer


def test_truncated_solution_without_an_answer_is_a_candidate_but_is_not_chosen() -> None:
    engine = ToyEngine(Dictated(["a long way to go " * 9, "\\boxed{4}"]))
    strategy = SelfConsistency(n=2, sampling=SamplingParams(max_tokens=20))
    result = asyncio.run(strategy(ROOT, toy_resources(engine=engine)))
    assert [c.answer for c in result.candidates] == [None, "4"]
    assert chosen(result) == "4"


def test_truncated_solution_after_its_answer_may_be_chosen() -> None:
    engine = ToyEngine(Dictated(["\\boxed{4} and then I ramble on"]))
    result = asyncio.run(BestOfN(n=1, sampling=SamplingParams(max_tokens=12))(ROOT, toy_resources(engine=engine)))
    assert chosen(result) == "4"


def test_search_without_finished_solutions_ends_normally() -> None:
    result = asyncio.run(BestOfN(n=3)(ROOT, toy_resources(budget=Budget(tokens=2))))
    assert (result.best, result.stop_reason, result.votes) == (None, "budget", {})
    assert result.usage.tokens == 2


def test_larger_budget_only_adds_candidates() -> None:
    """The samples come in the same order with the same seeds, however the waves were cut."""
    few = asyncio.run(BestOfN(n=16)(ROOT, toy_resources(budget=Budget(calls=5))))
    many = asyncio.run(BestOfN(n=16)(ROOT, toy_resources()))
    assert few.candidates == many.candidates[:5]


@pytest.mark.parametrize("make", [BestOfN, SelfConsistency])
@pytest.mark.parametrize(("knob", "wrong"), [("n", 0), ("n", 2.0), ("n", "four"), ("agg_strategy", "max"), ("n", True)])
def test_wrong_sampling_knob_is_named(make: type, knob: str, wrong: object) -> None:
    with pytest.raises(ValueError, match=f"^{knob} must be"):
        make(**{knob: wrong})


def test_unknown_selection_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="select must be one of majority, weighted, best"):
        SelfConsistency(select="loudest")
