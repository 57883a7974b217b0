"""Rules that say where a step ends, and the steps that searches make by them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from decoding.core import SamplingParams
from search.expand import Expander
from search.step_rules.fixed_length import FixedLengthSteps
from search.step_rules.markers import MarkerSteps
from search.steps import DelimiterSteps, StepRule, split_steps
from search.tree import SearchTree
from tests.support.scripted_thinker import SOLUTION, scripted_thinker
from tests.support.searches import search_classes
from tests.support.toy_search import ROOT, ToyEngine, decode_bytes, run_search, toy_resources

RULES: dict[str, StepRule] = {
    "delimiter": DelimiterSteps(),
    "long delimiter": DelimiterSteps(min_tokens=100),
    "fixed length": FixedLengthSteps(tokens=512),
    "markers": MarkerSteps(),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
SAMPLING = SamplingParams(max_tokens=32_768)


@every_rule
def test_steps_of_a_long_thought_hold_every_token_once_and_are_long_enough(rule: StepRule) -> None:
    tokens = tuple(SOLUTION.encode("latin-1"))
    steps = split_steps(tokens, (), decode_bytes, rule)
    assert "".join(step.text for step in steps) == SOLUTION
    assert len(steps) > 10
    assert all(len(step.tokens) >= rule.min_tokens for step in steps[:-1])


def test_step_ends_before_a_marker_behind_white_space() -> None:
    rule = MarkerSteps(markers=["Wait", "Let me check"], min_tokens=0)
    tokens = tuple(b"It is 5. Wait, no. Waiters\nWaiting. Let me check it.")
    steps = [step.text for step in split_steps(tokens, (), decode_bytes, rule)]
    assert steps == ["It is 5. ", "Wait, no. ", "Waiters\n", "Waiting. ", "Let me check it."]


@pytest.mark.parametrize("seed", range(20))
def test_end_before_a_marker_is_found_at_any_place_and_token(seed: int) -> None:
    rng = random.Random(seed)
    words = ["a", " b", "\n", " Wait", "Wait", "ü", " long" * 9]
    tokens = tuple(rng.choices(range(len(words)), weights=[9, 9, 3, 1, 1, 1, 1], k=400))
    rule = MarkerSteps(markers=["Wait"], min_tokens=rng.randrange(4))

    def decode(ids: tuple[int, ...]) -> str:
        return "".join(words[i] for i in ids)

    end = rule.find_end(tokens, 0, decode)
    possible = [
        i
        for i in range(max(1, rule.min_tokens), len(tokens))
        if words[tokens[i]] == " Wait" or (words[tokens[i]] == "Wait" and decode(tokens[:i])[-1:].isspace())
    ]
    assert end == (possible[0] if possible else None)


@every_rule
def test_path_of_single_steps_is_the_whole_text(rule: StepRule) -> None:
    """Engines stop at texts that end no step; what is thrown away behind an end is generated again."""
    run = Expander(ROOT, toy_resources(engine=scripted_thinker(), step_rule=rule))
    node = SearchTree.ROOT
    limit = SamplingParams(max_tokens=rule.max_tokens or 256)
    for _ in range(1000):
        (node,) = asyncio.run(run.sample_continuations([node], limit, one_step=True, path_tokens=32_768))
        if run.tree.nodes[node].finish is not None:
            break
    assert run.tree.path_text(node) == SOLUTION
    assert run.tree.nodes[node].finish == "eos"
    run.tree.assert_invariants()


def test_step_that_reaches_its_limit_goes_on_and_one_that_ends_the_path_does_not() -> None:
    engine = ToyEngine(lambda _, prefix: "x" * (50 - len(prefix) + len(ROOT)))
    run = Expander(ROOT, toy_resources(engine=engine))
    limit = SamplingParams(max_tokens=20)
    (first,) = asyncio.run(run.sample_continuations([SearchTree.ROOT], limit, one_step=True, path_tokens=45))
    (second,) = asyncio.run(run.sample_continuations([first], limit, one_step=True, path_tokens=45))
    (last,) = asyncio.run(run.sample_continuations([second], limit, one_step=True, path_tokens=45))
    assert [run.tree.nodes[i].finish for i in (first, second, last)] == [None, None, "length"]
    assert run.tree.nodes[last].num_path_tokens == 45


@pytest.mark.parametrize("name", search_classes())
@pytest.mark.parametrize("rule", ["fixed length", "markers"])
def test_every_search_gets_the_answer_of_a_long_thought(name: str, rule: str) -> None:
    strategy: Any = search_classes()[name](n=4, sampling=SAMPLING)
    result = run_search(strategy, engine=scripted_thinker(), step_rule=RULES[rule])
    assert result.stop_reason == "done"
    assert result.candidates
    assert all(candidate.answer == "7" for candidate in result.candidates)


@pytest.mark.parametrize("name", ["rebase", "beam_search"])
def test_delimiter_reaches_the_answer_too_however_many_paragraphs_there_are(name: str) -> None:
    strategy: Any = search_classes()[name](n=4, sampling=SAMPLING)
    result = run_search(strategy, engine=scripted_thinker())
    assert {candidate.answer for candidate in result.candidates} == {"7"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DelimiterSteps(delimiter=""), "step.delimiter must not be empty"),
        (lambda: DelimiterSteps(min_tokens=-1), "step.min_tokens must be an int >= 0, got -1"),
        (lambda: FixedLengthSteps(tokens=0), "step.tokens must be an int >= 1, got 0"),
        (lambda: FixedLengthSteps(tokens=5, min_tokens=9), "step.tokens must be an int >= 9, got 5"),
        (lambda: MarkerSteps(markers=[]), r"step.markers must be a list of words, got \[\]"),
        (lambda: MarkerSteps(markers="Wait"), "step.markers must be a list of words, got 'Wait'"),
    ],
)
def test_wrong_knob_is_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
