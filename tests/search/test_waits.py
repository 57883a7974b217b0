"""Thoughts that go on where they would end by themselves: "Wait" instead of the closing tag (s1)."""

from __future__ import annotations

from typing import Any

import pytest

from decoding.core import SamplingParams, Tokens
from search.step_rules.fixed_length import FixedLengthSteps
from search.step_rules.markers import MarkerSteps
from search.step_search import StepSearch
from search.steps import DelimiterSteps
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategy import Budget, SearchResult
from tests.support.scripted_thinker import CLOSING, FORCED_END, limit_thoughts
from tests.support.searches import search_classes
from tests.support.toy_search import ROOT, ToyEngine, run_search

WAIT = "Wait, "
SAMPLING = SamplingParams(max_tokens=400)


def hasty(seed: int, prefix: Tokens) -> str:
    """Ends its thought after every 30 letters; the answer is the number of times that it had to wait."""
    del seed
    text = before = bytes(prefix[len(ROOT) :]).decode()
    while CLOSING not in text:
        behind = text.rpartition(WAIT)[2]
        begun = next((n for n in range(len(CLOSING), 0, -1) if behind.endswith(CLOSING[:n])), 0)
        text += CLOSING[begun] if begun or len(behind) >= 30 else "abc \n\n"[len(behind) % 6]
    answer = f"{'It is' if FORCED_END in text else ' So'} \\boxed{{{text.count(WAIT)}}}."
    return text[len(before) :] + answer[len(text.partition(CLOSING)[2]) :]


def search(waits: int, strategy: Any = None, *, max_tokens: int | None = None, **changes: Any) -> SearchResult:
    thought = limit_thoughts(max_tokens=max_tokens, waits=waits, wait=tuple(WAIT.encode()))
    arguments = {"engine": ToyEngine(hasty), "thought": thought}
    return run_search(strategy or BestOfN(n=2, sampling=SAMPLING), **(arguments | changes))


@pytest.mark.parametrize("waits", [0, 1, 3])
@pytest.mark.parametrize("name", ["best_of_n", "self_consistency", *search_classes(StepSearch)])
@pytest.mark.parametrize(
    "rule", [DelimiterSteps(), FixedLengthSteps(tokens=19), MarkerSteps(markers=["Wait"], min_tokens=4)]
)
def test_thought_goes_on_so_many_times_in_every_search(name: str, rule: Any, waits: int) -> None:
    result = search(waits, search_classes()[name](n=4, sampling=SAMPLING), step_rule=rule)
    assert result.candidates
    for candidate in result.candidates:
        thought, _, answer = result.tree.path_text(candidate.node).partition(CLOSING)
        assert thought.count(WAIT) == waits
        assert [len(part) for part in thought.split(WAIT)] == [30] * (waits + 1)
        assert (answer, candidate.answer) == (f" So \\boxed{{{waits}}}.", str(waits))


def test_budget_of_the_thought_comes_first() -> None:
    result = search(waits=99, max_tokens=100)
    for candidate in result.candidates:
        thought, _, answer = result.tree.path_text(candidate.node).partition(FORCED_END)
        assert len(thought) == 100
        assert "boxed" in answer
    stopped = search(waits=99, max_tokens=33)  # "Wait, " does not fit
    assert {c.answer for c in stopped.candidates} == {"0"}


def test_put_in_text_has_log_probability_zero_and_is_not_counted() -> None:
    result = search(2, BestOfN(n=1, sampling=SAMPLING))
    (leaf,) = result.tree.leaf_nodes()
    logprobs = [x for node in result.tree.path_nodes(leaf) for x in result.tree.nodes[node].step.logprobs]
    assert logprobs[30:36] == [0.0] * 6
    assert logprobs.count(0.0) == 12
    generated = len(logprobs) - 12 + 2 * len(CLOSING)
    assert result.usage.tokens == generated


@pytest.mark.parametrize("strategy", [BestOfN(n=3, sampling=SAMPLING), Rebase(n=3, sampling=SAMPLING)])
@pytest.mark.parametrize("tokens", [1, 40, 90, 111, 250, 391])
def test_waits_stay_within_the_token_budget(strategy: Any, tokens: int) -> None:
    assert search(3, strategy, budget=Budget(tokens=tokens)).usage.tokens <= tokens
