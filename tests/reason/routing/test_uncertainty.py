"""What is measured of tokens where two models write: the numbers of the model that wrote each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams
from reason.models.byte_tokenizer import ByteTokenizer
from reason.prompt import Prompt, PromptFormat
from reason.routing.engine import RoutedEngine
from reason.routing.random_rate import RandomRouter
from reason.routing.token_bridge import BoundTokenBridge, TokenBridge
from search.uncertainty import join_uncertainty, make_certain
from tests.support.toy_search import ROOT, ToyEngine, decode_bytes, write_five_steps


class MeasuringEngine(ToyEngine):
    """Has the same numbers at every token: `width` likely tokens and an entropy of `width`; none with a width of 0."""

    width = 0

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        plain = super().continue_prefix(request)
        if not (self.width and request.num_top):
            return replace(plain, top_logprobs=None, top_ids=None, entropies=None)
        shape = (len(plain.tokens), self.width)
        return replace(
            plain,
            top_logprobs=np.full(shape, -self.width, dtype=np.float32),
            entropies=np.full(shape[0], self.width, dtype=np.float32),
        )


def measuring(width: int) -> MeasuringEngine:
    engine = MeasuringEngine(write_five_steps)
    engine.width = width
    return engine


def generate(small: MeasuringEngine, target: MeasuringEngine) -> Generation:
    both = RoutedEngine(small, target, RandomRouter(rate=0.5), decode=decode_bytes, delimiter="\n\n")
    request = GenerationRequest(prefix=ROOT, params=SamplingParams(max_tokens=400), seed=3, num_top=4)
    (generation,) = asyncio.run(both.bind("toy?", ROOT, None).generate([request]))
    assert {origin.model for origin in generation.origins} == {"draft", "target"}
    return generation


def test_each_token_has_the_numbers_of_the_model_that_wrote_it() -> None:
    generation = generate(measuring(2), measuring(3))
    assert generation.top_logprobs is not None
    assert generation.entropies is not None
    begin = 0
    for origin in generation.origins:
        width = {"draft": 2, "target": 3}[origin.model]
        rows = slice(begin, begin := origin.end)
        np.testing.assert_array_equal(generation.entropies[rows], width)
        np.testing.assert_array_equal(generation.top_logprobs[rows, :width], -width)
        assert np.isnan(generation.top_logprobs[rows, width:]).all()


@pytest.mark.parametrize("widths", [(0, 3), (3, 0)])
def test_there_are_none_where_one_of_the_engines_has_none(widths: tuple[int, int]) -> None:
    generation = generate(measuring(widths[0]), measuring(widths[1]))
    assert generation.top_logprobs is generation.entropies is None


class SmallModel:
    """Writes two tokens of two characters each in a vocabulary of pairs, and is measured at both."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        top = np.array([[-1, -2], [-3, -4]], dtype=np.float32)
        entropies = np.array([0.5, 1.5], dtype=np.float32)
        written = Generation(
            tokens=(1, 2), logprobs=(-1.0, -3.0), finish="length", top_logprobs=top, entropies=entropies
        )
        return [written for _ in requests]


class TwoPairs:
    """A tokenizer whose tokens 1 and 2 are `ab` and `cd`."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [1] * len(text)

    def decode(self, token_ids: Sequence[int], **kwargs: object) -> str:
        return "".join({1: "ab", 2: "cd"}[token] for token in token_ids)

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: object) -> str:
        raise NotImplementedError


def test_bridge_keeps_the_sum_of_the_entropies_and_the_mean_of_the_likely_tokens() -> None:
    form = PromptFormat(raw="{question}")
    ours = Prompt(form, ByteTokenizer())
    bridge = TokenBridge(Prompt(form, TwoPairs()), ours, None)
    bound = BoundTokenBridge(bridge, SmallModel(), ours.encode("Q"), (1,))
    request = GenerationRequest(prefix=ours.encode("Q"), params=SamplingParams(max_tokens=9), seed=0, num_top=2)
    (generation,) = asyncio.run(bound.generate([request]))
    assert len(generation.tokens) == 4
    assert sum(generation.logprobs) == pytest.approx(-4)
    assert generation.entropies is not None
    assert generation.entropies.sum() == pytest.approx(2)
    np.testing.assert_array_equal(np.array(generation.top_logprobs), [[-2.0, -3.0]] * 4)


def test_parts_without_tokens_do_not_count_and_tokens_put_in_are_certain() -> None:
    empty = Generation(tokens=(), logprobs=(), finish="length")
    measured = Generation(
        tokens=(5, 6),
        logprobs=(-1.0, -1.0),
        finish="length",
        top_logprobs=np.full((2, 3), -1, dtype=np.float32),
        entropies=np.full(2, 0.7, dtype=np.float32),
    )
    top, entropies = join_uncertainty([empty, make_certain((7,)), measured])
    assert top is not None
    assert entropies is not None
    assert np.isnan(top[0]).all()
    np.testing.assert_array_equal(top[1:], -1)
    np.testing.assert_allclose(entropies, [0, 0.7, 0.7])
    assert join_uncertainty([measured, Generation(tokens=(8,), logprobs=(-1.0,), finish="eos")]) == (None, None)
    assert join_uncertainty([empty]) == (None, None)
