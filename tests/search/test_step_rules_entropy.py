"""Steps that end where the model is unsure: before tokens of high entropy, found a stretch at a time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest, SamplingParams, Tokens
from search.expand import Expander
from search.step_rules.entropy import EntropySteps
from search.steps import split_generation
from search.tree import SearchTree
from tests.support.scripted_thinker import SOLUTION
from tests.support.searches import search_classes
from tests.support.toy_search import ROOT, ToyEngine, decode_bytes, run_search, toy_resources

SAMPLING = SamplingParams(max_tokens=32_768)
RULE = EntropySteps(threshold=1.0, min_tokens=8, max_tokens=200)


class HesitantEngine(ToyEngine):
    """Writes the solution of the scripted thinker, unsure of every `W` and of nothing else."""

    def __init__(self) -> None:
        super().__init__(lambda _, prefix: SOLUTION[len(prefix) - len(ROOT) :])

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        assert request.num_top == RULE.num_top
        plain = super().continue_prefix(request)
        entropies = np.where(np.array(plain.tokens) == ord("W"), 2.0, 0.5).astype(np.float32)
        return replace(plain, entropies=entropies)


def expand_to_the_end(step_rule: EntropySteps, sampling: SamplingParams) -> tuple[Expander, int, HesitantEngine]:
    engine = HesitantEngine()
    run = Expander(ROOT, toy_resources(engine=engine, step_rule=step_rule, num_top=step_rule.num_top))
    node = SearchTree.ROOT
    for _ in range(2000):
        (node,) = asyncio.run(run.sample_continuations([node], sampling, one_step=True, path_tokens=32_768))
        if run.tree.nodes[node].finish is not None:
            return run, node, engine
    raise AssertionError("the path does not end")


@given(
    st.lists(st.sampled_from([0.0, 0.9, 1.0, 1.1, 3.0]), min_size=1, max_size=60),
    st.integers(0, 10),
    st.integers(10, 20),
)
def test_step_ends_at_the_first_unsure_token_or_at_its_limit(
    entropies: list[float], min_tokens: int, max_tokens: int
) -> None:
    rule = EntropySteps(threshold=1.0, min_tokens=min_tokens, max_tokens=max_tokens)
    tokens = tuple(range(len(entropies)))
    measured = np.array(entropies, dtype=np.float32)
    steps = split_generation(
        Generation(tokens=tokens, logprobs=(), finish="eos", entropies=measured), lambda ids: "x" * len(ids), rule
    )
    assert tuple(token for step in steps for token in step.tokens) == tokens
    begin = 0
    for step in steps:
        end = begin + len(step.tokens)
        unsure = [i for i in range(begin + max(1, min_tokens), end) if entropies[i] > 1]
        assert not unsure
        assert len(step.tokens) <= max_tokens
        assert end == len(tokens) or entropies[end] > 1 or end - begin == max_tokens
        assert step.entropies is not None
        assert step.entropies.tolist() == measured[begin:end].tolist()
        begin = end


def test_path_of_single_steps_is_the_whole_text_cut_before_unsure_tokens() -> None:
    run, node, _ = expand_to_the_end(RULE, SamplingParams(max_tokens=RULE.max_tokens))
    assert run.tree.path_text(node) == SOLUTION
    assert run.tree.nodes[node].finish == "eos"
    steps = run.tree.path_steps(node)
    assert len(steps) > 50
    for step, then in pairwise(steps):
        assert len(step.tokens) == RULE.max_tokens or then.text.startswith("W")
        assert "W" not in step.text[RULE.min_tokens :]


def test_engine_writes_little_more_than_the_step_and_what_is_thrown_away_is_counted() -> None:
    run, node, engine = expand_to_the_end(RULE, SamplingParams(max_tokens=RULE.max_tokens))
    assert RULE.stretch_tokens < RULE.max_tokens
    assert max(request.params.max_tokens for request in engine.requests) == RULE.stretch_tokens
    num_kept = run.tree.nodes[node].num_path_tokens
    assert run.usage.unused_tokens > 0
    assert run.usage.tokens == num_kept + run.usage.unused_tokens


def test_stop_string_across_two_stretches_ends_the_step() -> None:
    stop = "case 2"
    end = SOLUTION.index(stop) + len(stop)
    rule = replace(RULE, min_tokens=RULE.min_tokens + end - 3 - RULE.stretch_tokens)
    assert end - len(stop) < rule.stretch_tokens < end
    run = Expander(ROOT, toy_resources(engine=HesitantEngine(), step_rule=rule, num_top=rule.num_top))
    sampling = SamplingParams(max_tokens=RULE.max_tokens, stop=(stop,))
    (node,) = asyncio.run(run.sample_continuations([SearchTree.ROOT], sampling, one_step=True, path_tokens=999))
    assert run.tree.path_text(node) == SOLUTION[:end]
    assert run.tree.nodes[node].finish == "stop"


@pytest.mark.parametrize("name", search_classes())
def test_every_search_gets_the_answer_of_a_long_thought(name: str) -> None:
    strategy: Any = search_classes()[name](n=4, sampling=SAMPLING)
    result = run_search(strategy, engine=HesitantEngine(), step_rule=RULE, num_top=RULE.num_top)
    assert result.candidates
    assert all(candidate.answer == "7" for candidate in result.candidates)


def test_engine_that_measures_nothing_is_an_error_and_no_step_of_another_kind() -> None:
    def find_end(tokens: Tokens) -> int | None:
        return RULE.find_end(tokens, 0, decode_bytes)

    assert find_end(()) is None
    with pytest.raises(ValueError, match="step=entropy needs the entropies of tokens"):
        find_end((1, 2))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"threshold": -1}, "step.threshold must be a number >= 0, got -1"),
        ({"max_tokens": 9}, "step.max_tokens must be an int >= 32, got 9"),
        ({"num_top": 0}, "step.num_top must be an int >= 1, got 0"),
        ({"num_top": 40}, "step.num_top must be an int from 1 to 20, got 40"),
    ],
)
def test_wrong_knob_is_refused_by_name(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EntropySteps(**knobs)
