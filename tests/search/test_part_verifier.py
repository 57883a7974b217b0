"""Thoughts that a verifier reads part by part (TrimR): where they end, what stays the same, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import SamplingParams, Tokens, Usage
from search.early_exit.redundant import RedundantThought
from search.part_verifier import PartVerdict
from search.probes import ThoughtProbes
from search.step_rules.fixed_length import FixedLengthSteps
from search.step_rules.markers import MarkerSteps
from search.step_search import StepSearch
from search.steps import DelimiterSteps, StepRule
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategy import Budget, SearchResult
from tests.support.scripted_thinker import CLOSING, FORCED_END, PROBE, RandomThinker, limit_thoughts
from tests.support.searches import search_classes
from tests.support.toy_search import ROOT, ToyEngine, decode_bytes, extract_answer, run_search

SAMPLING = SamplingParams(max_tokens=900)
SEARCHES = ("best_of_n", "self_consistency", *search_classes(StepSearch))
STEP_RULES: dict[str, StepRule] = {
    "delimiter": DelimiterSteps(),
    "fixed length": FixedLengthSteps(tokens=19),
    "markers": MarkerSteps(markers=["Wait"], min_tokens=4),
}
TEMPLATES = {"answer": "answer|{part}", "same": "same|{former}|{latter}"}
NEVER: dict[str, Any] = {"agree": 10**6, "give_up_tokens": None, "loop_tokens": None}


def rule_of(**knobs: Any) -> RedundantThought:
    fields: dict[str, Any] = {"verifier": "small", "at": "turns", "every": 1, "markers": ["Wait"], "longest_gap": None}
    return RedundantThought(**(fields | {"loop_tokens": None, "templates": TEMPLATES} | knobs))


def parts_of(signs: str) -> list[str]:
    """The parts of a thought, one per sign: a digit is an answer, as is "!"; "-" is none, "?" is not understood."""
    return [f"Wait, case {i} has {sign}{'.' * (7 * i % 5)}.\n\n" for i, sign in enumerate(signs)]


def thinker(signs: str) -> ToyEngine:
    """Writes these parts, closes its thought, and answers 3; ended by force it answers 7."""
    solution = "".join(parts_of(signs)) + f"{CLOSING} So \\boxed{{3}}."

    def write(seed: int, prefix: Tokens) -> str:
        del seed
        text = decode_bytes(prefix[len(ROOT) :])
        if FORCED_END in text:
            return "\\boxed{7}."[len(text.partition(FORCED_END)[2]) :]
        return solution[len(text) :]

    return ToyEngine(write)


class SignReader:
    """A verifier that reads the signs: an `AskVerdict` with the requests that it had. It cannot compare "!"."""

    def __init__(self, count_tokens: Callable[[int], int] = lambda limit: 3, waits: int = 0) -> None:
        self.requests: list[str] = []
        self.limits: set[int] = set()
        self.deadlines: set[float | None] = set()
        self._count_tokens, self._waits = count_tokens, waits

    async def __call__(self, request: str, *, max_tokens: int, deadline: float | None) -> PartVerdict:
        self.requests.append(request)
        self.limits.add(max_tokens)
        self.deadlines.add(deadline)
        for _ in range(self._waits):
            await asyncio.sleep(0)
        kind, *parts = request.split("|")
        signs = [part.partition(" has ")[2][:1] for part in parts]
        usage = Usage(calls=1, tokens=self._count_tokens(max_tokens), prompt_tokens=len(request))
        if kind == "answer":
            return PartVerdict(None if signs == ["?"] else signs not in (["-"], [""]), usage)
        return PartVerdict(None if "!" in signs else signs[0] == signs[1], usage)


def search(
    rule: RedundantThought | None,
    engine: ToyEngine,
    reader: SignReader | None = None,
    strategy: Any = None,
    **changes: Any,
) -> SearchResult:
    probes = None
    if rule is not None:
        probes = ThoughtProbes(
            rule=rule,
            tokens=tuple(PROBE.encode()),
            read_answer=extract_answer,
            hint=tuple((rule.hint or "").encode()),
            verifier=rule.make_verifier("toy?", reader or SignReader()),
        )
    arguments = {"engine": engine, "thought": limit_thoughts(probes=probes)}
    return run_search(strategy or BestOfN(n=2, sampling=SAMPLING), **(arguments | changes))


def thoughts_of(result: SearchResult) -> set[tuple[str, str]]:
    """The thoughts of all solutions, and how each was ended."""
    assert result.candidates
    texts = [result.tree.path_text(candidate.node) for candidate in result.candidates]
    ends = [FORCED_END if FORCED_END in text else CLOSING for text in texts]
    return {(text.partition(end)[0], end) for text, end in zip(texts, ends, strict=True)}


def count_parts_to_end(signs: str, *, agree: int, give_up_parts: int | None, changes: int) -> int | None:
    """After how many parts the thought ends: the rules of TrimR on the signs; None: it ends itself."""
    has_answer = [sign not in "-?" for sign in signs]
    for end in range(1, len(signs)):  # behind the last part is no turn
        last = signs[:end][-agree:]
        if len(last) == agree and len(set(last)) == 1 and has_answer[end - 1] and ("!" not in last or agree == 1):
            return end
        pairs = list(pairwise(range(max(0, end - changes - 1), end)))
        if give_up_parts is None or end < give_up_parts or len(pairs) < changes:
            continue
        first = end - changes - 1
        is_unknown = [signs[i] == "?" for i in range(first, end)]
        # "!" is not compared: where both parts have an answer, nothing is known of the second
        for i in range(max(1, first), end):
            is_unknown[i - first] |= has_answer[i - 1] and has_answer[i] and "!" in signs[i - 1 : i + 1]
        if not any(is_unknown) and all(not has_answer[j] or signs[i] != signs[j] for i, j in pairs):
            return end
    return None


@settings(max_examples=150, deadline=None)
@given(
    signs=st.text("12-?!", min_size=1, max_size=9),
    agree=st.integers(1, 4),
    give_up_parts=st.none() | st.integers(1, 8),
    changes=st.integers(1, 4),
    by_steps=st.booleans(),
    step_rule=st.sampled_from([*STEP_RULES.values()]),
)
def test_thought_ends_exactly_where_the_rule_says(
    signs: str, agree: int, give_up_parts: int | None, changes: int, by_steps: bool, step_rule: StepRule
) -> None:
    parts = parts_of(signs)
    limit = None if give_up_parts is None else sum(map(len, parts[:give_up_parts]))
    rule = rule_of(agree=agree, give_up_tokens=limit, changes=changes)
    strategy: Any = (Rebase if by_steps else BestOfN)(n=2, sampling=SAMPLING)
    result = search(rule, thinker(signs), strategy=strategy, step_rule=step_rule)
    end = count_parts_to_end(signs, agree=agree, give_up_parts=give_up_parts, changes=changes)
    expected = ("".join(parts), CLOSING) if end is None else ("".join(parts[:end]), FORCED_END)
    assert thoughts_of(result) == {expected}


@pytest.mark.parametrize("step_rule", STEP_RULES)
@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_ends_a_thought_that_repeats_its_answer(name: str, step_rule: str) -> None:
    strategy = search_classes()[name](n=4, sampling=SAMPLING)
    result = search(rule_of(agree=3), thinker("-12-222222"), strategy=strategy, step_rule=STEP_RULES[step_rule])
    assert thoughts_of(result) == {("".join(parts_of("-12-222222")[:7]), FORCED_END)}


@pytest.mark.parametrize("step_rule", STEP_RULES)
def test_verifier_reads_each_part_once_whatever_the_steps(step_rule: str) -> None:
    reader, signs = SignReader(), "1-22?3!4"
    strategy = Rebase(n=1, sampling=SAMPLING)
    result = search(rule_of(**NEVER), thinker(signs), reader, strategy, step_rule=STEP_RULES[step_rule])
    texts = [part.strip() for part in parts_of(signs)]
    asked_for_answer = [request for request in reader.requests if request.startswith("answer")]
    compared = [request for request in reader.requests if request.startswith("same")]
    assert asked_for_answer == [f"answer|{text}" for text in texts[:-1]]
    assert compared == [f"same|{texts[i]}|{texts[i + 1]}" for i in (2, 5)]
    assert result.usage.probes == len(signs) - 1


@pytest.mark.parametrize("name", SEARCHES)
def test_nonsense_of_the_verifier_never_ends_a_thought(name: str) -> None:
    rule = rule_of(agree=1, give_up_tokens=1, changes=1)
    strategy = search_classes()[name](n=4, sampling=SAMPLING)
    result = search(rule, thinker("?" * 9), strategy=strategy)
    assert thoughts_of(result) == {("".join(parts_of("?" * 9)), CLOSING)}
    assert result.usage.probes >= 8


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("step_rule", STEP_RULES)
def test_rule_that_never_exits_changes_no_search(name: str, step_rule: str) -> None:
    strategy = search_classes()[name](n=4, sampling=SAMPLING)
    rule = rule_of(markers=["a", "bc"], **NEVER)

    def run(rule: RedundantThought | None) -> SearchResult:
        return search(rule, RandomThinker(), strategy=strategy, step_rule=STEP_RULES[step_rule])

    without, read = run(None), run(rule)
    assert read.tree.to_dict() == without.tree.to_dict()
    assert (read.best, read.votes) == (without.best, without.votes)
    assert read.usage.probes > 0 == without.usage.probes


def test_text_before_the_end_is_that_of_a_run_without_the_rule() -> None:
    def run(rule: RedundantThought | None) -> set[str]:
        strategy = BestOfN(n=6, sampling=SAMPLING)
        return {thought for thought, _ in thoughts_of(search(rule, RandomThinker(mean_length=400), strategy=strategy))}

    rule = rule_of(markers=["a", "bc"], agree=10**6, changes=3, give_up_tokens=60)  # it finds no answers
    without, early = run(None), run(rule)
    assert max(map(len, early)) < max(map(len, without))
    assert all(any(whole.startswith(thought) for whole in without) for thought in early)


@pytest.mark.parametrize("hint", ["\nI know enough.", None])
def test_thought_that_comes_to_no_answer_gets_the_hint(hint: str | None) -> None:
    rule = rule_of(give_up_tokens=1, changes=3, hint=hint, hint_tokens=5)
    ((thought, end),) = thoughts_of(search(rule, thinker("1-23" * 3), SignReader()))
    before = "".join(parts_of("1-23"))
    assert (thought[: len(before)], end) == (before, FORCED_END)
    assert thought[len(before) :][: len(hint or "")] == (hint or "")
    assert len(thought) == len(before) + (0 if hint is None else len(hint) + 5)


def test_usage_counts_what_the_verifier_writes() -> None:
    reader = SignReader(lambda limit: 3)
    engine = thinker("-11111")
    result = search(rule_of(agree=3, probe_tokens=9), engine, reader)
    assert reader.limits == {4}  # two verdicts share the tokens of a probe
    assert len(reader.requests) == 2 * (4 + 2)  # four parts are read, and two pairs compared
    assert (result.usage.probes, result.usage.probe_tokens) == (2 * 4, 3 * len(reader.requests))
    in_tree = sum(len(node.step.tokens) for node in result.tree.nodes) - 2 * len(FORCED_END)
    behind = result.usage.unused_tokens  # "Wait", which shows the turn
    assert result.usage.tokens == in_tree + behind + result.usage.probe_tokens
    assert result.usage.calls == len(engine.requests) + len(reader.requests)


@settings(max_examples=80, deadline=None)
@given(
    signs=st.text("12-?", min_size=1, max_size=9),
    tokens=st.integers(1, 900),
    probe_tokens=st.integers(2, 40),
    every=st.integers(1, 40),
    agree=st.integers(1, 4),
    by_steps=st.booleans(),
)
def test_verdicts_count_in_the_token_budget(
    signs: str, tokens: int, probe_tokens: int, every: int, agree: int, by_steps: bool
) -> None:
    rule = rule_of(agree=agree, probe_tokens=probe_tokens, every=every)
    strategy: Any = (Rebase if by_steps else BestOfN)(n=4, sampling=SAMPLING)
    reader = SignReader(lambda limit: limit)
    result = search(rule, thinker(signs), reader, strategy, budget=Budget(tokens=tokens))
    assert result.usage.tokens <= tokens


@pytest.mark.parametrize("name", ["best_of_n", "rebase", "beam_search"])
def test_tree_does_not_depend_on_how_fast_the_verifier_is(name: str) -> None:
    strategy = search_classes()[name](n=4, sampling=SAMPLING)
    rule = rule_of(markers=["a", "bc"], changes=4, give_up_tokens=90)
    results = [
        search(rule, RandomThinker(), SignReader(waits=waits), strategy, budget=Budget(tokens=2500)) for waits in (0, 9)
    ]
    assert results[0].tree.to_dict() == results[1].tree.to_dict()
    assert replace(results[0].usage, seconds=0) == replace(results[1].usage, seconds=0)
    assert results[0].usage.probes > 0


def test_verdicts_have_the_deadline_of_the_search() -> None:
    for seconds in (None, 60.0):
        reader = SignReader()
        search(rule_of(), thinker("1-1-1"), reader, budget=Budget(seconds=seconds))
        assert len(reader.deadlines) == 1
        assert (reader.deadlines == {None}) == (seconds is None)
