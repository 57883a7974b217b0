"""Where limits end a thought, its answer has the room that was kept for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from decoding.core import GenerationRequest, SamplingParams, Tokens
from search.early_exit.certain import CertainAnswer
from search.expand import Expander
from search.probes import ThoughtProbes
from search.step_rules.fixed_length import FixedLengthSteps
from search.step_rules.markers import MarkerSteps
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategy import Budget, SearchResult
from search.thought import ThoughtBudget
from search.tree import SearchTree
from tests.support.scripted_thinker import FORCED_END, PROBE, limit_thoughts
from tests.support.toy_search import ROOT, ToyEngine, extract_answer, run_search, toy_resources

CLOSING = "</think>"


def answer_behind(text: str) -> str | None:
    return extract_answer(text.partition(CLOSING)[2])


def thinks_for_ever(answer: str, thought: Callable[[int], str] = lambda seed: "abcdefg hijk lmn " * 600) -> ToyEngine:
    """An engine that thinks until its thought is ended by force, then gives this answer, and to probes none."""

    def write(seed: int, prefix: Tokens) -> str:
        text = bytes(prefix).decode("latin-1").partition("\n")[2]
        if PROBE in text:
            return "} no"
        before, tag, behind = text.partition(CLOSING)
        begun = FORCED_END.partition(CLOSING)[2]
        return answer[len(behind.removeprefix(begun)) :] if tag else thought(seed)[len(before) :]

    return ToyEngine(write)


def search(engine: ToyEngine, thought: ThoughtBudget, strategy: Any, **more: Any) -> SearchResult:
    return run_search(strategy, engine=engine, thought=thought, extract_answer=answer_behind, **more)


@pytest.mark.parametrize("tokens", [3000, 4000, 5000])
@pytest.mark.parametrize("every", [None, 32, 128])
@pytest.mark.parametrize("length", [50, 400])
def test_probes_do_not_take_the_room_of_the_answers(tokens: int, every: int | None, length: int) -> None:
    probes = None
    if every is not None:
        rule = CertainAnswer(every=every)
        probes = ThoughtProbes(rule=rule, tokens=tuple(PROBE.encode()), read_answer=extract_answer)
    result = search(
        thinks_for_ever("x" * length + "\\boxed{7}."),
        replace(limit_thoughts(probes=probes), answer_tokens=512),
        Rebase(n=2, sampling=SamplingParams(max_tokens=30_000)),
        step_rule=FixedLengthSteps(tokens=512),
        budget=Budget(tokens=tokens),
    )
    assert [candidate.answer for candidate in result.candidates] == ["7", "7"]
    assert result.usage.tokens <= tokens


def test_an_answer_as_long_as_its_share_leaves_the_other_branches_theirs() -> None:
    """One of four branches fills its share; the others have not begun their answers then."""

    def write(seed: int, prefix: Tokens) -> str:
        text = bytes(prefix).decode("latin-1").partition("\n")[2]
        kind = text[:1] or "AB"[seed % 2]
        whole = "A" + "t" * 1200 + CLOSING + "x" * 1500
        if kind == "A":
            return whole[len(text) :]
        thought, tag, behind = text.partition(CLOSING)
        begun = FORCED_END.partition(CLOSING)[2]
        return "\\boxed{2}."[len(behind.removeprefix(begun)) :] if tag else ("B" + "abc def " * 600)[len(thought) :]

    for tokens in (6000, 7000):
        result = search(
            ToyEngine(write),
            replace(limit_thoughts(), answer_tokens=100),
            Rebase(n=4, sampling=SamplingParams(max_tokens=30_000)),
            step_rule=FixedLengthSteps(tokens=256),
            budget=Budget(tokens=tokens),
        )
        thinking = [c for c in result.candidates if result.tree.path_text(c.node).startswith("B")]
        assert thinking
        assert {candidate.answer for candidate in thinking} == {"2"}


@pytest.mark.parametrize("shift", range(-3, 4))
def test_marker_that_completes_at_the_end_of_a_thought_does_not_end_its_branch(shift: int) -> None:
    text = ("x" * 79 + " Wait, " + "y" * (8 + shift) + " Wait, ").ljust(2000, "z")
    result = search(
        thinks_for_ever("\\boxed{7}.", lambda seed: text),
        limit_thoughts(max_tokens=99),
        Rebase(n=1, sampling=SamplingParams(max_tokens=1000)),
        step_rule=MarkerSteps(),
    )
    assert [candidate.answer for candidate in result.candidates] == ["7"]


@pytest.mark.parametrize("answer_tokens", [1, 4, 60])
@pytest.mark.parametrize("window", [60, 100, 400])
def test_forced_end_and_answer_fit_the_context_window(answer_tokens: int, window: int) -> None:
    class Bounded(ToyEngine):
        def continue_prefix(self, request: GenerationRequest) -> Any:
            assert len(request.prefix) + request.params.max_tokens <= window
            return super().continue_prefix(request)

    engine = Bounded(thinks_for_ever("\\boxed{7}.").write)
    thought = replace(limit_thoughts(), answer_tokens=answer_tokens)
    result = search(engine, thought, BestOfN(n=2, sampling=SamplingParams(max_tokens=4000)), context_window=window)
    for candidate in result.candidates:
        assert FORCED_END in result.tree.path_text(candidate.node)


@pytest.mark.parametrize("waits", [1, 9])
def test_pause_in_a_thought_that_was_made_to_wait_leaves_it_open(waits: int) -> None:
    text = "abc \n\n" * 5 + CLOSING + "So 1."

    def write(seed: int, prefix: Tokens) -> str:
        written = bytes(prefix).decode("latin-1").partition("\n")[2].replace("Wait, ", "")
        return (text if len(written) < 30 else "abc \n\n" * 90)[len(written) if len(written) < 30 else 0 :]

    thought = replace(limit_thoughts(waits=waits, wait=tuple(b"Wait, ")), answer_tokens=20)
    expander = Expander(ROOT, toy_resources(engine=ToyEngine(write), thought=thought))
    part = SamplingParams(max_tokens=60)
    (leaf,) = asyncio.run(expander.sample_continuations([SearchTree.ROOT], part, one_step=False, pauses=True))
    assert FORCED_END not in expander.tree.path_text(leaf)
    assert "Wait, " in expander.tree.path_text(leaf)
    assert expander.tree.nodes[leaf].finish is None
