"""A thought that a server sends apart from the text becomes a part of the solution again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams
from reason.engines.http.errors import ResponseLost
from reason.engines.openai_api.engine import OpenAIEngine
from reason.engines.openai_api.settings import OpenAISettings
from reason.engines.openai_api.streaming import CompletionStream
from reason.engines.openai_api.wire import RequestedText, parse_completion
from reason.models.byte_tokenizer import ByteTokenizer
from tests.support.scripted_openai_server import REPLY_TEXT, ScriptedOpenAIServer

TAGS = ("<think>", "</think>")
TOKENIZER = ByteTokenizer()


@pytest.fixture
def server() -> Iterator[ScriptedOpenAIServer]:
    server = ScriptedOpenAIServer()
    yield server
    server.close()


def requested(tags: tuple[str, str] | None = TAGS) -> RequestedText:
    return RequestedText(stop=("\n\n",), max_tokens=50, prompt_bytes=9, thought_tags=tags)


def text_of(finish: str = "stop", tags: tuple[str, str] | None = TAGS, **message: Any) -> str:
    return parse_completion({"choices": [{"message": message, "finish_reason": finish}]}, requested(tags)).text


def generate(server: ScriptedOpenAIServer, tags: tuple[str, str] | None) -> Generation:
    settings = OpenAISettings(urls=[server.url], model="toy", api="chat", thought_tags=tags)
    prompt = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "Q?"}], tokenize=False, add_generation_prompt=True
    )
    request = GenerationRequest(prefix=tuple(TOKENIZER.encode(prompt)), params=SamplingParams(max_tokens=40), seed=1)
    engine = OpenAIEngine(settings, tokenizer=TOKENIZER)
    try:
        return asyncio.run(engine.generate([request]))[0]
    finally:
        engine.close()


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thought_stands_in_its_tags_before_the_text(field: str) -> None:
    message: dict[str, Any] = {field: "1 and 1", "content": "2"}
    assert text_of(**message) == "<think>1 and 1</think>2"


@pytest.mark.parametrize(
    ("finish", "content", "text"),
    [
        ("length", None, "<think>hm"),
        ("length", "", "<think>hm"),
        ("stop", None, "<think>hm"),
        ("stop", "", "<think>hm</think>"),
        ("length", "2", "<think>hm</think>2"),
    ],
)
def test_reply_without_a_text_is_an_unfinished_thought(finish: str, content: str | None, text: str) -> None:
    assert text_of(finish, reasoning_content="hm", content=content) == text


def test_reply_without_a_thought_is_as_before() -> None:
    assert text_of(content="2", reasoning_content=None) == text_of(content="2", reasoning="") == "2"
    assert text_of(content="2", reasoning_content="hm", tags=None) == "2"


def test_thought_that_is_no_text_is_a_lost_response() -> None:
    with pytest.raises(ResponseLost):
        text_of(content="2", reasoning_content=7)
    with pytest.raises(ResponseLost):
        CompletionStream(requested()).add_event({"choices": [{"delta": {"reasoning": ["hm"]}}]})


def test_streamed_thought_stands_in_its_tags_and_ends_at_a_stop_too() -> None:
    def streamed(*deltas: dict[str, str | None], tags: tuple[str, str] | None = TAGS) -> str:
        stream = CompletionStream(requested(tags))
        for delta in deltas:
            stream.add_event({"choices": [{"delta": delta, "finish_reason": None}]})
        stream.add_event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        return stream.build_response().text

    first: dict[str, str | None] = {"reasoning_content": "1 ", "content": None}
    thought = (first, dict(first, reasoning_content="and 1", content=""))
    assert streamed(*thought, {"content": "2"}) == "<think>1 and 1</think>2"
    assert streamed(*thought) == "<think>1 and 1"
    assert streamed(*thought, {"content": "2"}, tags=None) == "2"
    assert streamed({"reasoning": "a\n"}, {"reasoning": "\nb"}) == "<think>a\n\n"


def test_engine_keeps_the_thought_of_a_server(server: ScriptedOpenAIServer) -> None:
    server.thought = {"reasoning": "hm"}
    assert TOKENIZER.decode(generate(server, TAGS).tokens) == f"<think>hm</think>{REPLY_TEXT}"
    server.thought = {"reasoning": "hm", "content": None}
    assert TOKENIZER.decode(generate(server, TAGS).tokens) == "<think>hm"


def test_dropped_thought_is_warned_of_once(server: ScriptedOpenAIServer, caplog: pytest.LogCaptureFixture) -> None:
    server.thought = {"reasoning_content": "hm"}
    with caplog.at_level(logging.WARNING):
        assert TOKENIZER.decode(generate(server, None).tokens) == REPLY_TEXT
    assert caplog.text.count("thinking@model.thinking=PRESET keeps them") == 1
