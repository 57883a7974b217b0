"""Log-probabilities of likely tokens over OpenAI's protocol: requested where something reads them, and checked."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams
from reason.engines.openai_api.engine import OpenAIEngine
from reason.engines.openai_api.request_format import RequestFormat
from reason.engines.openai_api.response import RequestedText, parse_completion
from reason.engines.openai_api.settings import OpenAISettings
from reason.engines.openai_api.streaming import CompletionStream
from reason.models.byte_tokenizer import ByteTokenizer
from tests.support.scripted_openai_server import REPLY_TEXT, ScriptedOpenAIServer

TOKENIZER = ByteTokenizer()
QUESTION = [{"role": "user", "content": "Q?"}]
CONVERSATION = TOKENIZER.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
REQUESTED = RequestedText(stop=(), max_tokens=20, prompt_bytes=30)
REQUEST = GenerationRequest(prefix=tuple(TOKENIZER.encode("Q?")), params=SamplingParams(), seed=1, num_top=3)


@pytest.fixture
def server() -> Iterator[ScriptedOpenAIServer]:
    started = ScriptedOpenAIServer()
    yield started
    started.close()


def generate(server: ScriptedOpenAIServer, *requests: GenerationRequest, **more: Any) -> list[Generation]:
    knobs: dict[str, Any] = {"api": "completions", "logprobs": True} | more
    settings = OpenAISettings(urls=[server.url], model="toy", **knobs)
    engine = OpenAIEngine(settings, tokenizer=TOKENIZER)
    try:
        return asyncio.run(engine.generate(requests))
    finally:
        engine.close()


def completion(tops: object) -> dict[str, Any]:
    logprobs = {"tokens": ["On", "e."], "token_logprobs": [-0.5, -1.0], "top_logprobs": tops}
    return {"choices": [{"text": "One.", "finish_reason": "stop", "stop_reason": None, "logprobs": logprobs}]}


def chat(tops: object) -> dict[str, Any]:
    content = [{"token": token, "logprob": -0.5, "top_logprobs": tops} for token in ("On", "e.")]
    choice = {"message": {"content": "One."}, "finish_reason": "stop", "stop_reason": None}
    return {"choices": [choice | {"logprobs": {"content": content}}]}


def test_only_a_request_that_reads_them_asks_for_them(server: ScriptedOpenAIServer) -> None:
    measured, plain = generate(server, REQUEST, replace(REQUEST, num_top=0))
    assert sorted(body["logprobs"] for body in server.bodies) == [1, 3]
    assert plain.top_logprobs is plain.entropies is None
    assert measured.top_logprobs is not None
    assert measured.entropies is not None
    assert len(measured.tokens) == len(REPLY_TEXT), "the text ended by itself, and the server sent no end token"
    np.testing.assert_array_equal(
        measured.top_logprobs, np.tile(np.array([-0.5, -1.5, -2.5], dtype=np.float32), (len(measured.tokens), 1))
    )
    part = sum(math.exp(-x) * x for x in (0.5, 1.5, 2.5))
    np.testing.assert_allclose(measured.entropies, part, rtol=1e-6)


def test_server_that_sends_fewer_leaves_the_rest_unknown_and_says_so(
    server: ScriptedOpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.most_top = 2
    with caplog.at_level(logging.WARNING):
        generations = generate(server, REQUEST, REQUEST)
    for generation in generations:
        assert generation.top_logprobs is not None
        assert np.isnan(generation.top_logprobs[:, 2]).all()
        assert np.isfinite(generation.top_logprobs[:, :2]).all()
    assert caplog.text.count("log-probabilities of 2 likely tokens, of 3 that were requested") == 1


def test_tokens_of_another_vocabulary_have_none_and_a_warning_says_so(
    server: ScriptedOpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.thought = {"reasoning": "hm"}
    request = replace(REQUEST, prefix=tuple(TOKENIZER.encode(CONVERSATION)))
    with caplog.at_level(logging.WARNING):
        (generation,) = generate(server, request, api="chat", thought_tags=["<think>", "</think>"])
    assert bytes(generation.tokens[:-1]).startswith(b"<think>hm</think>")
    assert generation.top_logprobs is generation.entropies is None
    assert "such solutions have no confidence" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 0.5, True, "-1", None, -(10**400)])
def test_impossible_value_makes_all_of_them_not_reported_and_nothing_else(value: object) -> None:
    for body in (
        completion([{"a": -0.1}, {"a": -0.1, "b": value}]),
        completion(value),
        completion([{"a": -0.1}, value]),
        chat([{"token": "a", "logprob": value}]),
        chat(value),
    ):
        parsed = parse_completion(body, REQUESTED)
        assert parsed.top_logprobs == ()
        assert len(parsed.token_logprobs) == 2


def test_both_shapes_are_read_whole_and_streamed() -> None:
    expected = ((-0.1, -2.0), (-0.1, -2.0))
    tops = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.0}]
    assert parse_completion(chat(tops), REQUESTED).top_logprobs == expected
    assert parse_completion(completion([{"a": -0.1, "b": -2.0}] * 2), REQUESTED).top_logprobs == expected
    stream = CompletionStream(REQUESTED)
    for token, finish in (("On", None), ("e.", "stop")):
        logprobs = {"tokens": [token], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.1, "b": -2.0}]}
        stream.add_event({"choices": [{"text": token, "finish_reason": finish, "logprobs": logprobs}]})
    assert stream.build_response().top_logprobs == expected


def test_chats_and_completions_are_asked_in_their_own_words() -> None:
    chats, texts = (RequestFormat(model="m", chat=is_chat, logprobs=True) for is_chat in (True, False))
    params = SamplingParams()
    body = chats.build_body(CONVERSATION, params, 0, num_top=5)
    assert (body["logprobs"], body["top_logprobs"]) == (True, 5)
    assert "top_logprobs" not in chats.build_body(CONVERSATION, params, 0)
    assert texts.build_body("Q?", params, 0, num_top=5)["logprobs"] == 5
    assert texts.build_body("Q?", params, 0)["logprobs"] == 1
    silent = RequestFormat(model="m", chat=False)
    assert "logprobs" not in silent.build_body("Q?", params, 0, num_top=5)
