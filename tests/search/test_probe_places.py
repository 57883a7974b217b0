"""Where thoughts are probed: every so many tokens, or where they turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from decoding.core import GenerationRequest, SamplingParams
from search.early_exit.certain import CertainAnswer
from search.early_exit.converged import ConvergedAnswers
from search.early_exit.redundant import RedundantThought
from search.probes import EarlyExit, Probe, ThoughtProbes
from search.probing import ProbePlaces
from search.step_rules.fixed_length import FixedLengthSteps
from search.step_rules.markers import MarkerSteps
from search.step_search import StepSearch
from search.steps import DelimiterSteps, StepRule
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategy import Budget, SearchResult
from search.thought import ThoughtBudget
from tests.support.scripted_thinker import (
    CLOSING,
    FORCED_END,
    PROBE,
    THOUGHT,
    RandomThinker,
    is_thinking,
    scripted_thinker,
)
from tests.support.searches import search_classes
from tests.support.toy_search import ROOT, ToyEngine, decode_bytes, extract_answer, run_search

SEARCHES = ("best_of_n", "self_consistency", *search_classes(StepSearch))
MARKERS = ("a", "bc")
STEP_RULES: dict[str, StepRule] = {
    "delimiter": DelimiterSteps(),
    "fixed length": FixedLengthSteps(tokens=17),
    "same markers": MarkerSteps(markers=MARKERS, min_tokens=9),
    "other markers": MarkerSteps(markers=["d"], min_tokens=9),
}
PLACES: dict[str, dict[str, Any]] = {
    "every": {"every": 200},
    "turns": {"at": "turns", "every": 200},
}
RULES: dict[str, tuple[type[EarlyExit], dict[str, Any]]] = {
    "converged": (ConvergedAnswers, {"agree": 2}),
    "converged without doubts": (ConvergedAnswers, {"agree": 2, "doubts": ["wait", "hold on"]}),
    "certain": (CertainAnswer, {"threshold": 0.6}),
    "redundant, changing": (RedundantThought, {"give_up_tokens": 600, "changes": 2, "loop_tokens": None}),
    "redundant, loop": (RedundantThought, {"give_up_tokens": None, "loop_tokens": 150, "longest_gap": 300}),
}


@dataclass(frozen=True, kw_only=True)
class ExitBehind(EarlyExit):
    """Ends a thought at the first probe after so many tokens."""

    tokens: int = 10**6

    def decide(self, probes: Sequence[Probe]) -> bool:
        return bool(probes) and probes[-1].num_tokens >= self.tokens


def search(rule: EarlyExit, engine: ToyEngine, strategy: Any, **changes: Any) -> SearchResult:
    probes = ThoughtProbes(rule=rule, tokens=tuple(PROBE.encode()), read_answer=extract_answer)
    end = tuple(changes.pop("forced_end", FORCED_END).encode())
    thought = ThoughtBudget(
        is_open=is_thinking, forced_end=end, max_tokens=None, answer_tokens=60, closing=CLOSING, probes=probes
    )
    return run_search(strategy, engine=engine, thought=thought, **changes)


def probe_texts(requests: Sequence[GenerationRequest]) -> list[str]:
    """The thoughts that were probed, in order."""
    texts = [decode_bytes(request.prefix[len(ROOT) :]) for request in requests]
    return [text.removesuffix(PROBE) for text in texts if text.endswith(PROBE)]


def expected_places(thought: str, markers: Sequence[str], every: int, longest_gap: int | None) -> list[int]:
    """The places of probes in a thought, from its text alone."""
    turns = [match.start() for match in re.finditer(rf"(?<=\s)(?:{'|'.join(markers)})", thought)]
    places: list[int] = []
    for place in range(1, len(thought)):
        since = place - (places[-1] if places else 0)
        if (place in turns and since >= every) or since == longest_gap:
            places.append(place)
    return places


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["best_of_n", "self_consistency", "beam_search", "rebase", "mcts"])
def test_scripted_thinker_ends_earlier_with_the_same_answer(name: str, rule: str, at: str) -> None:
    make, settings = RULES[rule]
    engine = scripted_thinker((lambda position: str(position)) if rule == "redundant, changing" else (lambda _: "7"))
    strategy = search_classes()[name](n=4, sampling=SamplingParams(max_tokens=30_000))
    result = search(make(**PLACES[at], **settings), engine, strategy, step_rule=FixedLengthSteps(tokens=128))
    assert result.best is not None
    assert extract_answer(result.tree.path_text(result.best)) == "7"
    for candidate in result.candidates:
        thought, end, _ = result.tree.path_text(candidate.node).partition(FORCED_END)
        assert end
        assert THOUGHT.startswith(thought)
        assert len(thought) < 1700 < len(THOUGHT) / 13
        is_turn = THOUGHT[len(thought) :].startswith("Wait, ")
        assert (is_turn or rule == "redundant, loop") if at == "turns" else len(thought) % 200 == 0


@pytest.mark.parametrize("longest_gap", [None, 25, 60])
@pytest.mark.parametrize("every", [1, 6, 25])
def test_places_of_a_whole_solution_follow_from_its_text(every: int, longest_gap: int | None) -> None:
    engine = RandomThinker(mean_length=10**9)
    rule = ExitBehind(at="turns", every=every, markers=MARKERS, longest_gap=longest_gap)
    result = search(rule, engine, BestOfN(n=1, sampling=SamplingParams(max_tokens=500)))
    (leaf,) = result.tree.leaf_nodes()
    thought = result.tree.path_text(leaf).partition(FORCED_END)[0]
    texts = probe_texts(engine.requests)
    expected = expected_places(thought, MARKERS, every, longest_gap)
    assert [len(text) for text in texts] == expected
    assert len(expected) > 5
    assert texts == [thought[:place] for place in expected]


@pytest.mark.parametrize(
    "step_rule",
    [
        DelimiterSteps(),
        FixedLengthSteps(tokens=17),
        MarkerSteps(markers=["Wait", "case"], min_tokens=9),
        MarkerSteps(markers=["xx"], min_tokens=9),
    ],
)
@pytest.mark.parametrize("every", [1, 45, 300])
def test_places_do_not_depend_on_steps(every: int, step_rule: StepRule) -> None:
    engine = scripted_thinker()
    rule = ExitBehind(at="turns", every=every, markers=["Wait", "case"], longest_gap=500)
    result = search(rule, engine, Rebase(n=2, sampling=SamplingParams(max_tokens=2000)), step_rule=step_rule)
    assert {candidate.answer for candidate in result.candidates} == {"7"}
    expected = expected_places(THOUGHT[:1940], ["Wait", "case"], every, 500)
    assert sorted({len(text) for text in probe_texts(engine.requests)}) == expected


@pytest.mark.parametrize("step_rule", STEP_RULES)
@pytest.mark.parametrize("name", SEARCHES)
def test_thought_that_ends_at_a_turn_ends_before_its_marker(name: str, step_rule: str) -> None:
    engine = RandomThinker(mean_length=10**9)
    rule = ExitBehind(at="turns", every=10, markers=MARKERS, longest_gap=None, tokens=60)
    strategy = search_classes()[name](n=4, sampling=SamplingParams(max_tokens=400))
    result = search(rule, engine, strategy, step_rule=STEP_RULES[step_rule])
    texts = probe_texts(engine.requests)
    assert result.candidates
    for candidate in result.candidates:
        thought, end, answer = result.tree.path_text(candidate.node).partition(FORCED_END)
        assert (end, answer, candidate.answer) == (FORCED_END, "\\boxed{7}.", "7")
        # searches that follow few paths for long prefer open ones, and some of these have no turn before the limit
        if name in ("astar", "dpts") and len(thought) >= 400 - 60:
            continue
        assert len(thought) >= 60
        assert all(place < 60 for place in expected_places(thought, MARKERS, 10, None))
        assert thought in texts
        assert thought[-1].isspace()


def test_forced_end_at_the_beginning_of_a_step_is_whole_though_it_holds_the_delimiter() -> None:
    end = f"\n\nEnough.\n\n{CLOSING}\n\nIt is "

    def write(seed: int, prefix: tuple[int, ...]) -> str:
        del seed
        written = decode_bytes(prefix[len(ROOT) :])
        if written.endswith(PROBE):
            return "7}"
        return (
            "\\boxed{7}."[len(written.partition(end)[2]) :]
            if end in written
            else "One.\n\nWait, two.\n\nThree.\n\n"[len(written) :]
        )

    rule = ExitBehind(at="turns", every=1, markers=["Wait"], tokens=1)
    strategy = Rebase(n=1, sampling=SamplingParams(max_tokens=400))
    result = search(rule, ToyEngine(write), strategy, step_rule=DelimiterSteps(), forced_end=end)
    assert [node.step.text for node in result.tree.nodes] == ["One.\n\n", f"{end}\\boxed{{7}}."]


def test_tokens_behind_the_turn_that_ends_a_thought_are_counted_as_unused() -> None:
    engine = RandomThinker(mean_length=10**9)
    rule = ExitBehind(at="turns", every=10, markers=MARKERS, tokens=60)
    result = search(rule, engine, BestOfN(n=4, sampling=SamplingParams(max_tokens=400)))
    in_tree = sum(len(node.step.tokens) for node in result.tree.nodes) - 4 * len(FORCED_END)
    assert 4 <= result.usage.unused_tokens <= 4 * len("bc")
    assert result.usage.tokens == in_tree + result.usage.probe_tokens + result.usage.unused_tokens
    assert result.usage.calls == len(engine.requests)


def test_thought_that_does_not_turn_is_probed_at_the_longest_gap_or_never() -> None:
    for longest_gap, num_probes in ((None, 0), (100, 3), (50, 6)):
        engine = RandomThinker(mean_length=10**9)
        rule = ExitBehind(at="turns", every=50, markers=["Wait"], longest_gap=longest_gap)
        result = search(rule, engine, BestOfN(n=1, sampling=SamplingParams(max_tokens=400)))
        assert result.usage.probes == num_probes


def test_engine_stops_at_a_bare_marker_only_behind_white_space() -> None:
    rule = ExitBehind(at="turns", every=3, markers=["Wait"])
    places = ProbePlaces(rule, decode_bytes)
    assert places.find_stops(tuple(b"ab"), 0) == ()
    assert places.find_stops(tuple(b"abc"), 0) == (" Wait", "\nWait")
    assert places.find_stops(tuple(b"abc\n\n"), 0) == ("Wait",)
    assert places.find_stops(tuple(b"abc\n\n"), 3) == ()
    assert ProbePlaces(ExitBehind(every=3), decode_bytes).find_stops(tuple(b"abc"), 0) == ()


def test_word_that_only_looks_like_a_turn_does_not_stop_the_thought() -> None:
    def write(seed: int, prefix: tuple[int, ...]) -> str:
        del seed
        text = "One. xWait two.\n(Wait) three. Wait, four.</think> So \\boxed{4}."
        written = decode_bytes(prefix[len(ROOT) :])
        return f"{len(written) - len(PROBE)}}}" if written.endswith(PROBE) else text[len(written) :]

    engine = ToyEngine(write)
    rule = ExitBehind(at="turns", every=1, markers=["Wait"])
    result = search(rule, engine, BestOfN(n=1, sampling=SamplingParams(max_tokens=400)))
    assert probe_texts(engine.requests) == ["One. xWait two.\n(Wait) three. "]
    assert result.candidates[0].answer == "4"


@pytest.mark.parametrize("tokens", [190, 300, 411])
@pytest.mark.parametrize("by_steps", [False, True])
def test_turn_that_the_engine_runs_past_stays_within_the_budget(tokens: int, by_steps: bool) -> None:
    """The engine is told to stop behind a blank or a new line; what it writes behind this turn is taken off again."""

    def write(seed: int, prefix: tuple[int, ...]) -> str:
        del seed
        written = decode_bytes(prefix[len(ROOT) :])
        if written.endswith(PROBE):
            return "7}"
        return (
            "z" * 1000 if FORCED_END in written else f"{'x' * 29}\tWait, {'y' * 60} Wait, {'y' * 1000}"[len(written) :]
        )

    engine, sampling = ToyEngine(write), SamplingParams(max_tokens=1000)
    rule = ExitBehind(at="turns", every=29, markers=["Wait"], longest_gap=None, probe_tokens=2, tokens=1)
    strategy: Any = (Rebase if by_steps else BestOfN)(n=1, sampling=sampling)
    step_rule = FixedLengthSteps(tokens=500)
    result = search(rule, engine, strategy, budget=Budget(tokens=tokens), step_rule=step_rule)
    (candidate,) = result.candidates
    assert result.tree.path_text(candidate.node).startswith(f"{'x' * 29}\t{FORCED_END}")
    assert result.usage.unused_tokens > 50
    assert result.usage.tokens <= tokens
