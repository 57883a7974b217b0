"""Thoughts that are ended by force, in every search."""

from __future__ import annotations

from typing import Any

import pytest

from decoding.core import SamplingParams, Tokens
from search.step_rules.fixed_length import FixedLengthSteps
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategy import Budget, SearchResult
from tests.support.endless_thought import END, limits, think_for_ever
from tests.support.searches import search_classes
from tests.support.toy_search import ROOT, ToyEngine, run_search


def search(name: str, budget: Budget | None = None, **fields: Any) -> SearchResult:
    strategy = search_classes()[name](n=4, sampling=SamplingParams(max_tokens=1000))
    more = {} if budget is None else {"budget": budget}
    return run_search(
        strategy, engine=ToyEngine(think_for_ever), step_rule=FixedLengthSteps(tokens=64), **fields, **more
    )


@pytest.mark.parametrize("name", search_classes())
@pytest.mark.parametrize("max_tokens", [300, None])
def test_thought_that_would_not_end_has_an_answer_in_every_search(name: str, max_tokens: int | None) -> None:
    result = search(name, thought=limits(max_tokens))
    assert result.candidates
    for candidate in result.candidates:
        text = result.tree.path_text(candidate.node)
        thought, _, answer = text.partition(END.decode())
        assert answer == "\\boxed{7}."
        assert len(thought) == (max_tokens or 1000 - 60)
        assert candidate.answer == "7"


def test_without_a_budget_of_thoughts_they_end_at_the_limit_without_an_answer() -> None:
    assert all(candidate.answer is None for candidate in search("best_of_n").candidates)


def test_end_of_the_token_budget_ends_a_thought_too() -> None:
    result = search("best_of_n", budget=Budget(tokens=1400), thought=limits(None))
    assert result.stop_reason == "budget"
    whole, cut, *_ = result.candidates
    assert whole.answer == cut.answer == "7"
    assert result.tree.nodes[cut.node].num_path_tokens < result.tree.nodes[whole.node].num_path_tokens
    assert result.usage.tokens <= 1400


def test_step_that_the_token_budget_cuts_leaves_room_for_the_answer() -> None:
    result = run_search(
        Rebase(n=1, sampling=SamplingParams(max_tokens=1000)),
        engine=ToyEngine(think_for_ever),
        step_rule=FixedLengthSteps(tokens=512),
        thought=limits(None),
        budget=Budget(tokens=200),
    )
    assert [candidate.answer for candidate in result.candidates] == ["7"]
    (thought, end, _) = result.tree.path_text(result.candidates[0].node).partition(END.decode())
    assert (len(thought), end) == (200 - 60, END.decode())
    assert result.usage.tokens <= 200


@pytest.mark.parametrize(
    "limit", [{"tokens": 300}, {"tokens": 700}, {"tokens": 1500}, {"tokens": 3000}, {"forwards": 700}]
)
@pytest.mark.parametrize("name", search_classes())
def test_a_budget_of_tokens_that_nears_its_end_has_an_answer_in_every_search(name: str, limit: dict[str, int]) -> None:
    """What is left belongs to all branches: one that thinks on does not take the room of the others' answers."""
    result = search(name, budget=Budget(**limit), thought=limits(None, answer_tokens=40))
    assert all(getattr(result.usage, unit) <= most for unit, most in limit.items())
    answers = [candidate.answer for candidate in result.candidates]
    assert "7" in answers
    assert answers.count("7") >= len(answers) / 2


def test_thought_that_ends_by_itself_is_left_alone() -> None:
    def write(seed: int, prefix: Tokens) -> str:
        return ("so " * 20 + "</think>It is \\boxed{3}. " + "x" * 200)[len(prefix) - len(ROOT) :]

    strategy = BestOfN(n=1, sampling=SamplingParams(max_tokens=200))
    for max_tokens in (80, 68, 1000):
        result = run_search(strategy, engine=ToyEngine(write), thought=limits(max_tokens, answer_tokens=20))
        text = result.tree.path_text(result.tree.leaf_nodes()[0])
        assert text == write(0, ROOT)[:200]
        assert END.decode() not in text


def test_forced_end_is_in_the_tree_with_log_probability_zero() -> None:
    result = search("best_of_n", thought=limits(100))
    logprobs = [
        x for node in result.tree.path_nodes(result.tree.leaf_nodes()[0]) for x in result.tree.nodes[node].step.logprobs
    ]
    assert logprobs[100 : 100 + len(END)] == [0.0] * len(END)
    assert 0.0 not in logprobs[:100]


def test_usage_does_not_count_what_was_put_in() -> None:
    result = search("best_of_n", thought=limits(100))
    generated = sum(len(result.tree.nodes[i].step.tokens) for i in range(len(result.tree))) - 4 * len(END)
    assert result.usage.tokens == generated
