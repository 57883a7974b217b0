"""Thoughts that are asked to end before they are ended by force, and thoughts that run in a loop (TrimR)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import SamplingParams, Tokens
from search.early_exit.converged import ConvergedAnswers
from search.early_exit.redundant import RedundantThought, find_period
from search.probes import EarlyExit, ThoughtProbes
from search.step_rules.fixed_length import FixedLengthSteps
from search.step_rules.markers import MarkerSteps
from search.step_search import StepSearch
from search.steps import DelimiterSteps, StepRule
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategy import Budget, SearchResult
from search.thought import ThoughtHistory
from tests.support.scripted_thinker import CLOSING, FORCED_END, PROBE, limit_thoughts
from tests.support.searches import search_classes
from tests.support.toy_search import ROOT, ToyEngine, decode_bytes, extract_answer, run_search

HINT = "\nI know enough."
SAMPLING = SamplingParams(max_tokens=500)
SEARCHES = ("best_of_n", "self_consistency", *search_classes(StepSearch))
STEP_RULES: dict[str, StepRule] = {
    "delimiter": DelimiterSteps(),
    "fixed length": FixedLengthSteps(tokens=19),
    "markers": MarkerSteps(markers=["Wait"], min_tokens=4),
}


def thinker(*, obeys_behind: int | None = None, loops_behind: int = 10**9) -> ToyEngine:
    """An engine that thinks for ever.

    It is 7 whenever it is probed, and 3 when it ends its thought itself, so many letters behind the hint. From
    `loops_behind` letters on it repeats a passage of 11.
    """

    def write(seed: int, prefix: Tokens) -> str:
        del seed
        text = before = decode_bytes(prefix[len(ROOT) :])
        for cue, answer in ((PROBE, "7} and more"), (FORCED_END, "\\boxed{7}.")):
            if cue in text:
                return answer[len(text.partition(cue)[2]) :]
        while CLOSING not in text and len(text) < 600:
            behind = text.partition(HINT)[2]
            begun = next((n for n in range(len(CLOSING) - 1, 0, -1) if text.endswith(CLOSING[:n])), 0)
            if begun or (HINT in text and obeys_behind is not None and len(behind) >= obeys_behind):
                text += CLOSING[begun]
            elif len(text) < loops_behind:
                text += f"Case {len(text)} {'abc' * (len(text) % 5)}.\n\n"
                text = text[:loops_behind]
            else:
                text += "again and \n\n"[(len(text) - loops_behind) % 11]
        ending = " So \\boxed{3}." if CLOSING in text else ""
        return text[len(before) :] + ending[len(text.partition(CLOSING)[2]) :]

    return ToyEngine(write)


def search(rule: EarlyExit, engine: ToyEngine, strategy: Any = None, **changes: Any) -> SearchResult:
    probes = ThoughtProbes(
        rule=rule,
        tokens=tuple(PROBE.encode()),
        read_answer=extract_answer,
        hint=tuple((rule.hint or "").encode()),
    )
    waits = {name: changes.pop(name) for name in ("waits", "wait") if name in changes}
    max_tokens = changes.pop("max_tokens", None)
    thought = limit_thoughts(max_tokens=max_tokens, probes=probes, **waits)
    return run_search(strategy or BestOfN(n=2, sampling=SAMPLING), **({"engine": engine, "thought": thought} | changes))


@pytest.mark.parametrize("at", ["every", "turns"])
@pytest.mark.parametrize("step_rule", STEP_RULES)
@pytest.mark.parametrize("name", SEARCHES)
def test_model_that_takes_the_hint_ends_its_thought_itself(name: str, step_rule: str, at: str) -> None:
    rule = ConvergedAnswers(at=at, every=30, markers=["Case"], agree=2, hint=HINT, hint_tokens=60)
    strategy = search_classes()[name](n=4, sampling=SAMPLING)
    result = search(rule, thinker(obeys_behind=25), strategy, step_rule=STEP_RULES[step_rule])
    assert result.candidates
    for candidate in result.candidates:
        thought, _, answer = result.tree.path_text(candidate.node).partition(CLOSING)
        before, hint, behind = thought.partition(HINT)
        assert (hint, answer, candidate.answer) == (HINT, " So \\boxed{3}.", "3")
        assert 60 <= len(before) < 110
        assert 25 <= len(behind) < 60
        assert HINT not in behind
    assert result.usage.probes >= 2


@pytest.mark.parametrize("step_rule", STEP_RULES)
@pytest.mark.parametrize("name", SEARCHES)
def test_model_that_ignores_the_hint_is_ended_by_force(name: str, step_rule: str) -> None:
    rule = ConvergedAnswers(every=30, agree=2, hint=HINT, hint_tokens=45)
    engine = thinker()
    strategy = search_classes()[name](n=4, sampling=SAMPLING)
    result = search(rule, engine, strategy, step_rule=STEP_RULES[step_rule])
    assert result.candidates
    for candidate in result.candidates:
        thought, end, answer = result.tree.path_text(candidate.node).partition(FORCED_END)
        before, hint, behind = thought.partition(HINT)
        assert (len(before), hint, len(behind), end) == (60, HINT, 45, FORCED_END)
        assert (answer, candidate.answer) == ("\\boxed{7}.", "7")
    texts = [decode_bytes(request.prefix) for request in engine.requests]
    assert not any(HINT in text and text.endswith(PROBE) for text in texts), "it is not asked again"


def test_hint_has_log_probability_zero_and_is_not_counted() -> None:
    rule = ConvergedAnswers(every=30, agree=2, hint=HINT, hint_tokens=45)
    result = search(rule, thinker(), BestOfN(n=1, sampling=SAMPLING))
    (leaf,) = result.tree.leaf_nodes()
    logprobs = [x for node in result.tree.path_nodes(leaf) for x in result.tree.nodes[node].step.logprobs]
    assert logprobs[60 : 60 + len(HINT)] == [0.0] * len(HINT)
    assert logprobs.count(0.0) == len(HINT) + len(FORCED_END)
    assert result.usage.tokens == len(logprobs) - logprobs.count(0.0) + result.usage.probe_tokens
    assert result.usage.probes == 2


def test_thought_that_has_no_room_for_the_hint_is_ended_by_force() -> None:
    for max_tokens, has_hint in ((60 + len(HINT), False), (61 + len(HINT), True)):
        rule = ConvergedAnswers(every=30, agree=2, hint=HINT)
        result = search(rule, thinker(), max_tokens=max_tokens)
        for candidate in result.candidates:
            thought, end, _ = result.tree.path_text(candidate.node).partition(FORCED_END)
            assert (HINT in thought, len(thought), end) == (has_hint, max_tokens if has_hint else 60, FORCED_END)


def test_thought_that_takes_the_hint_does_not_have_to_wait() -> None:
    rule = ConvergedAnswers(every=30, agree=2, hint=HINT)
    result = search(rule, thinker(obeys_behind=0), waits=2, wait=tuple(b"Wait"))
    for candidate in result.candidates:
        assert result.tree.path_text(candidate.node).endswith(f"{HINT}{CLOSING} So \\boxed{{3}}.")


@pytest.mark.parametrize("strategy", [BestOfN(n=3, sampling=SAMPLING), Rebase(n=3, sampling=SAMPLING)])
@pytest.mark.parametrize("tokens", [1, 40, 90, 133, 250, 391])
def test_hints_stay_within_the_token_budget(strategy: Any, tokens: int) -> None:
    rule = ConvergedAnswers(every=10, agree=2, hint=HINT, hint_tokens=20)
    assert search(rule, thinker(), strategy, budget=Budget(tokens=tokens)).usage.tokens <= tokens


def test_hint_belongs_to_the_paths_that_have_it() -> None:
    history = ThoughtHistory(hint=50)
    assert (history.until(51), history.until(50)) == (history, ThoughtHistory())


@pytest.mark.parametrize("hint", [None, HINT])
@pytest.mark.parametrize("step_rule", STEP_RULES)
@pytest.mark.parametrize("name", ["best_of_n", "self_consistency", "beam_search", "rebase", "mcts"])
def test_thought_that_repeats_itself_is_ended_by_force(name: str, step_rule: str, hint: str | None) -> None:
    rule = RedundantThought(every=20, agree=99, give_up_tokens=None, loop_tokens=55, loop_repeats=5, hint=hint)
    engine = thinker(loops_behind=130)
    strategy = search_classes()[name](n=4, sampling=SAMPLING)
    result = search(rule, engine, strategy, step_rule=STEP_RULES[step_rule])
    assert result.candidates
    for candidate in result.candidates:
        thought, end, _ = result.tree.path_text(candidate.node).partition(FORCED_END)
        assert (len(thought), end, candidate.answer) == (200, FORCED_END, "7")  # the first probe with 55 of them
    probed = [len(request.prefix) for request in engine.requests if decode_bytes(request.prefix).endswith(PROBE)]
    assert max(probed) == len(ROOT) + 180 + len(PROBE), "a loop is seen without a probe"


def test_loop_is_left_alone_where_the_rule_does_not_look_for_it() -> None:
    rule = RedundantThought(every=20, agree=99, give_up_tokens=None, loop_tokens=None)
    result = search(rule, thinker(loops_behind=130))
    assert {len(result.tree.path_text(c.node).partition(FORCED_END)[0]) for c in result.candidates} == {440}


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 4))
def test_period_is_the_smallest_shift_that_leaves_the_tokens_the_same(passage: list[int], times: int) -> None:
    tokens = tuple(passage * times)
    shifts = [n for n in range(1, len(tokens) + 1) if tokens[n:] == tokens[: len(tokens) - n]]
    assert find_period(tokens) == min(shifts) <= len(passage)


@pytest.mark.parametrize(
    ("thought", "is_loop"),
    [
        ("", False),
        ("abcabcab", False),  # too short
        ("xyzabcabcabc", True),
        ("abcabcabca", True),  # wherever it is cut
        ("abcabcabcx", False),
        ("abcdabcdabcd", False),  # twice in the last nine
        ("zzzzzzzzz", True),
    ],
)
def test_loop_is_a_passage_that_fills_the_end_of_a_thought(thought: str, is_loop: bool) -> None:
    rule = RedundantThought(loop_tokens=9, loop_repeats=3)
    assert rule.is_loop(tuple(thought.encode())) is is_loop
    assert not replace(rule, loop_tokens=None).is_loop(tuple(thought.encode()))
