"""Thoughts that end early: probes leave no trace in what goes on, and what they say decides where it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest, SamplingParams
from decoding.engine import LocalEngine
from search.early_exit.converged import ConvergedAnswers
from search.probes import EarlyExit, Probe, ThoughtProbes
from search.step_rules.fixed_length import FixedLengthSteps
from search.step_rules.markers import MarkerSteps
from search.step_search import StepSearch
from search.steps import DelimiterSteps, StepRule
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategies.self_consistency import SelfConsistency
from search.strategy import Budget, SearchResult
from search.thought import ThoughtBudget
from search.tree import SearchTree
from tests.support.fakes import HashBackend, ToyTokenizer
from tests.support.scripted_thinker import CLOSING, FORCED_END, PROBE, RandomThinker, is_thinking
from tests.support.searches import search_classes
from tests.support.toy_search import ROOT, extract_answer, run_search

RULES: dict[str, StepRule] = {
    "delimiter": DelimiterSteps(),
    "fixed length": FixedLengthSteps(tokens=48),
    "markers": MarkerSteps(markers=["a", "bc"], min_tokens=9),
}
SEARCHES = ("best_of_n", "self_consistency", *search_classes(StepSearch))
SAMPLING = SamplingParams(max_tokens=400)
TURNS: dict[str, Any] = {"at": "turns", "markers": ("a", "bc")}


@dataclass(frozen=True, kw_only=True)
class ExitAt(EarlyExit):
    """Ends a thought at the first probe after so many tokens."""

    tokens: int = 10**6

    def decide(self, probes: Sequence[Probe]) -> bool:
        return bool(probes) and probes[-1].num_tokens >= self.tokens


def limits(rule: EarlyExit | None, **changes: Any) -> ThoughtBudget:
    probes = None
    if rule is not None:
        hint = tuple((rule.hint or "").encode())
        probes = ThoughtProbes(rule=rule, tokens=tuple(rule.probe.encode()), read_answer=extract_answer, hint=hint)
    end = tuple(FORCED_END.encode())
    fields: dict[str, Any] = {"is_open": is_thinking, "forced_end": end, "max_tokens": None, "answer_tokens": 60}
    return ThoughtBudget(**(fields | {"closing": CLOSING, "probes": probes} | changes))


def search(rule: EarlyExit | None, strategy: Any = None, **changes: Any) -> SearchResult:
    budget_fields = {name: changes.pop(name) for name in ("max_tokens", "answer_tokens", "closing") if name in changes}
    arguments = {"engine": RandomThinker(), "thought": limits(rule, **budget_fields)}
    return run_search(strategy or BestOfN(n=4, sampling=SAMPLING), **(arguments | changes))


def describe(tree: SearchTree) -> list[object]:
    return [(node.parent, node.step.tokens, node.step.logprobs, node.finish, node.score) for node in tree.nodes]


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("rule", RULES)
def test_rule_that_never_exits_changes_no_search(name: str, rule: str) -> None:
    strategy = search_classes()[name](n=4, sampling=SAMPLING)
    without = search(None, strategy, step_rule=RULES[rule])
    for places in ({"every": 5}, {"every": 32}, {"every": 5} | TURNS, {"every": 32, "longest_gap": 40} | TURNS):
        probed = search(ExitAt(**places), strategy, step_rule=RULES[rule])
        assert describe(probed.tree) == describe(without.tree)
        assert (probed.best, probed.votes, probed.selections) == (without.best, without.votes, without.selections)
        assert probed.usage.probes > 0 == without.usage.probes


@settings(max_examples=60, deadline=None)
@given(
    every=st.integers(1, 70),
    max_tokens=st.none() | st.integers(1, 300),
    answer_tokens=st.integers(0, 100),
    seed=st.integers(0, 999),
    stop=st.sampled_from([(), ("ab",), ("fe\n", "dd"), (" So \\b",)]),
    step_rule=st.sampled_from([None, *RULES.values()]),
    places=st.sampled_from(
        [{}, TURNS, TURNS | {"markers": (" a", "d\nb"), "longest_gap": 90}, TURNS | {"longest_gap": None}]
    ),
)
def test_probes_never_change_a_thought(
    every: int,
    max_tokens: int | None,
    answer_tokens: int,
    seed: int,
    stop: tuple[str, ...],
    step_rule: StepRule | None,
    places: dict[str, Any],
) -> None:
    sampling = replace(SAMPLING, stop=stop)
    strategy = BestOfN(n=2, sampling=sampling) if step_rule is None else Rebase(n=2, sampling=sampling)
    more: dict[str, Any] = {"seed": seed, "max_tokens": max_tokens, "answer_tokens": answer_tokens}
    more |= {} if step_rule is None else {"step_rule": step_rule}
    without, probed = search(None, strategy, **more), search(ExitAt(every=every, **places), strategy, **more)
    assert describe(probed.tree) == describe(without.tree)


@pytest.mark.parametrize(
    "places", [{"every": 16}, {"at": "turns", "every": 1, "markers": list("!#$%&abcdefghijklmnopqrstuvwxyz")}]
)
def test_probes_never_change_a_thought_of_the_local_engine(places: dict[str, Any]) -> None:
    decode = ToyTokenizer().decode
    strategy = Rebase(n=4, sampling=SamplingParams(max_tokens=200), normalise="none")

    def run(rule: EarlyExit | None) -> SearchResult:
        engine = LocalEngine(HashBackend(257), decode=decode, eos_ids=[256], kv_bytes=4096)
        more: dict[str, Any] = {"decode": decode, "step_rule": FixedLengthSteps(tokens=50)}
        try:
            thought = limits(rule, is_open=lambda text: "}" not in text, closing="}")
            result = search(None, strategy, engine=engine, thought=thought, **more)
            engine.assert_invariants()
            return result
        finally:
            engine.close()

    without, probed = run(None), run(ExitAt(**places))
    assert probed.usage.probes > 3
    assert describe(probed.tree) == describe(without.tree)


@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_ends_its_thoughts_at_the_probe_that_decides(name: str) -> None:
    engine = RandomThinker(mean_length=10**9)  # no thought ends by itself
    strategy = search_classes()[name](n=4, sampling=SAMPLING)
    result = search(ExitAt(every=20, tokens=100), strategy, engine=engine, step_rule=FixedLengthSteps(tokens=64))
    assert result.candidates
    for candidate in result.candidates:
        thought, end, answer = result.tree.path_text(candidate.node).partition(FORCED_END)
        assert (len(thought), end, answer, candidate.answer) == (100, FORCED_END, "\\boxed{7}.", "7")


def test_siblings_are_probed_at_the_same_places_whatever_their_steps() -> None:
    for step_rule in RULES.values():
        engine = RandomThinker(mean_length=10**9)
        search(ExitAt(every=30), Rebase(n=4, sampling=SAMPLING), engine=engine, step_rule=step_rule)
        probes = [request for request in engine.requests if bytes(request.prefix).decode().endswith(PROBE)]
        assert len(probes) > 20
        assert {(len(request.prefix) - len(ROOT) - len(PROBE)) % 30 for request in probes} == {0}


def test_history_of_a_path_reaches_over_its_steps() -> None:
    """Three answers must agree, and every step holds one probe."""
    engine = RandomThinker(lambda position: ("8" if position == 30 else "7", -0.5), mean_length=10**9)
    strategy = Rebase(n=2, sampling=SAMPLING)
    rule = ConvergedAnswers(every=30, agree=3)
    result = search(rule, strategy, engine=engine, step_rule=FixedLengthSteps(tokens=30))
    thoughts = {result.tree.path_text(c.node).partition(FORCED_END)[0] for c in result.candidates}
    assert {len(thought) for thought in thoughts} == {120}


def test_exit_saves_tokens_and_usage_counts_the_probes() -> None:
    engine = RandomThinker(mean_length=10**9)
    early = search(ExitAt(every=20, tokens=40), engine=engine)
    late = search(ExitAt(every=20), engine=RandomThinker(mean_length=10**9))
    assert early.usage.tokens < late.usage.tokens / 3
    assert early.usage.probes == 4 * 2
    assert early.usage.probe_tokens == 8 * len("7}")
    in_tree = sum(len(node.step.tokens) for node in early.tree.nodes) - 4 * len(FORCED_END)
    assert early.usage.tokens == in_tree + early.usage.probe_tokens
    assert early.usage.calls == len(engine.requests) == 4 * (2 + 2 + 1)  # two segments, two probes, the answer


def test_probe_is_a_short_greedy_request_of_the_same_problem() -> None:
    engine = RandomThinker(mean_length=10**9)
    rule = ExitAt(every=100, probe_tokens=9)
    search(rule, BestOfN(n=1, sampling=replace(SAMPLING, temperature=0.7, stop=("zz",))), engine=engine, group="p")
    probes = [request for request in engine.requests if bytes(request.prefix).decode().endswith(PROBE)]
    assert len(probes) == 3
    for request in probes:
        assert request.params == SamplingParams(max_tokens=9, temperature=0.0, stop=("}",))
        assert (request.group, request.hidden, request.num_top) == ("p", False, 0)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 1500),
    every=st.integers(1, 80),
    probe_tokens=st.integers(1, 20),
    exit_at=st.integers(1, 400),
    by_steps=st.booleans(),
    waits=st.integers(0, 2),
    more=st.sampled_from([{}, TURNS, {"hint": "Well, ", "hint_tokens": 9}, TURNS | {"hint": "Well, "}]),
)
def test_probes_count_in_the_token_budget(
    tokens: int, every: int, probe_tokens: int, exit_at: int, by_steps: bool, waits: int, more: dict[str, Any]
) -> None:
    rule = ExitAt(every=every, probe_tokens=probe_tokens, tokens=exit_at, **more)
    strategy: Any = (Rebase if by_steps else BestOfN)(n=4, sampling=SAMPLING)
    thought = limits(rule, waits=waits, wait=tuple(b"Wait"))
    result = run_search(strategy, engine=RandomThinker(), thought=thought, budget=Budget(tokens=tokens))
    assert result.usage.tokens <= tokens


def test_what_an_exit_saves_goes_back_to_the_budget() -> None:
    budget = Budget(tokens=700)
    without = search(None, engine=RandomThinker(mean_length=10**9), budget=budget)
    early = search(ExitAt(every=20, tokens=40), engine=RandomThinker(mean_length=10**9), budget=budget)
    assert sum(c.answer is not None for c in without.candidates) == 2
    assert [c.answer for c in early.candidates] == ["7"] * 4
    assert early.stop_reason == "done"


class SlowEngine(RandomThinker):
    """Answers probes after, or before, everything else."""

    def __init__(self, slow: Callable[[GenerationRequest], bool]) -> None:
        super().__init__(lambda position: ("7" if position > 60 else str(position % 9), -0.5), mean_length=300)
        self._slow = slow

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        for _ in range(9 if any(map(self._slow, requests)) else 0):
            await asyncio.sleep(0)
        return await super().generate(requests)


@pytest.mark.parametrize("name", SEARCHES)
def test_tree_does_not_depend_on_how_fast_probes_are(name: str) -> None:
    strategy = search_classes()[name](n=4, sampling=SAMPLING)
    rule, engines = (
        ConvergedAnswers(every=20),
        (
            RandomThinker(lambda position: ("7" if position > 60 else str(position % 9), -0.5), mean_length=300),
            SlowEngine(lambda request: bytes(request.prefix).decode().endswith(PROBE)),
            SlowEngine(lambda request: request.seed % 2 == 0),
        ),
    )
    results = [search(rule, strategy, engine=engine, budget=Budget(tokens=2500)) for engine in engines]
    assert all(describe(result.tree) == describe(results[0].tree) for result in results)
    usages = {replace(result.usage, seconds=0.0) for result in results}
    assert len(usages) == 1
    assert results[0].usage.probes > 0


def test_answers_that_need_more_room_than_a_probe_has_are_none() -> None:
    engine = RandomThinker(lambda _: ("1234567", -0.5), mean_length=10**9)
    assert search(ConvergedAnswers(every=20, agree=1, probe_tokens=7), engine=engine).usage.probes == 4 * 16
    enough = search(ConvergedAnswers(every=20, agree=1, probe_tokens=8), engine=engine)
    assert enough.usage.probes == 4
    assert {len(enough.tree.path_text(c.node).partition(FORCED_END)[0]) for c in enough.candidates} == {20}


def test_answer_with_braces_of_its_own_is_read_to_its_end() -> None:
    engine = RandomThinker(lambda _: ("\\frac{1}{2}", -0.5), mean_length=10**9)
    rule = ConvergedAnswers(every=20, agree=1)
    read: list[str] = []
    thought = limits(rule)
    assert thought.probes is not None
    probes = replace(thought.probes, read_answer=lambda text: read.append(text) or text)  # type: ignore[func-returns-value]
    search(rule, engine=engine, thought=replace(thought, probes=probes))
    assert set(read) == {f"{PROBE}\\frac{{1}}{{2}}}}"}


@pytest.mark.parametrize("places", [{"every": 20}, {"every": 1, "longest_gap": 1} | TURNS])
def test_no_probe_goes_beyond_the_window_of_the_model(places: dict[str, Any]) -> None:
    engine = RandomThinker(mean_length=10**9)
    window = len(ROOT) + 120
    rule = ExitAt(probe=f"So far, all in all:{PROBE}", **places)
    search(rule, SelfConsistency(n=2, sampling=SAMPLING), engine=engine, context_window=window)
    ends = [len(request.prefix) + request.params.max_tokens for request in engine.requests]
    assert max(ends) <= window
    assert any(bytes(request.prefix).decode().endswith(PROBE) for request in engine.requests)
