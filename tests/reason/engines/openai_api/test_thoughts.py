"""A thought that a server sends apart from the text becomes a part of the solution again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import reason
from decoding.core import Generation, GenerationRequest, SamplingParams
from reason.config.compose import compose_settings
from reason.engines.http.errors import ResponseLost
from reason.engines.openai_api.engine import OpenAIEngine
from reason.engines.openai_api.response import RequestedText, parse_completion
from reason.engines.openai_api.settings import OpenAISettings
from reason.engines.openai_api.streaming import CompletionStream
from reason.models.byte_tokenizer import ByteTokenizer
from reason.settings.validate import validate_settings
from tests.support.scripted_openai_server import REPLY_TEXT, ScriptedOpenAIServer

TAGS = ("<think>", "</think>")
TOKENIZER = ByteTokenizer()
SAMPLING = SamplingParams(max_tokens=40)
SERVED = ("engine=openai", "engine.model=toy", "search=self_consistency", "search.n=3")


@pytest.fixture
def server() -> Iterator[ScriptedOpenAIServer]:
    server = ScriptedOpenAIServer()
    yield server
    server.close()


def requested(tags: tuple[str, str] | None = TAGS) -> RequestedText:
    return RequestedText(stop=("\n\n",), max_tokens=50, prompt_bytes=9, thought_tags=tags)


def text_of(finish: str = "stop", tags: tuple[str, str] | None = TAGS, **message: Any) -> str:
    return parse_completion({"choices": [{"message": message, "finish_reason": finish}]}, requested(tags)).text


def generate(
    server: ScriptedOpenAIServer, tags: tuple[str, str] | None, *, params: SamplingParams = SAMPLING, **settings_of: Any
) -> Generation:
    settings = OpenAISettings(urls=[server.url], model="toy", api="chat", thought_tags=tags, **settings_of)
    prompt = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "Q?"}], tokenize=False, add_generation_prompt=True
    )
    request = GenerationRequest(prefix=tuple(TOKENIZER.encode(prompt)), params=params, seed=1)
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


@pytest.mark.parametrize("stream_from_tokens", [None, 1])
def test_text_behind_a_thought_that_was_not_sent_has_an_empty_one(
    stream_from_tokens: int | None, server: ScriptedOpenAIServer
) -> None:
    def text_of_reply(drops_thoughts: bool = True, **params: Any) -> str:
        sampling = replace(SAMPLING, **params)
        switch = {"drops_thoughts": drops_thoughts, "stream_from_tokens": stream_from_tokens}
        return TOKENIZER.decode(generate(server, TAGS, params=sampling, **switch).tokens)

    assert text_of_reply() == f"<think></think>{REPLY_TEXT}"
    assert text_of_reply(drops_thoughts=False) == REPLY_TEXT
    assert text_of_reply(max_tokens=7) == REPLY_TEXT[:7]  # perhaps the beginning of a thought
    assert text_of_reply(stop=("\n\n",)) == "One.\n\n"


@pytest.mark.parametrize(
    "message",
    [
        {"content": "hm</think>2"},
        {"content": "<think>hm"},
        {"content": ""},
        {"content": None, "reasoning": "hm"},
        {"content": "2", "reasoning_content": "hm"},
    ],
)
def test_reply_with_a_thought_or_a_tag_or_nothing_lacks_no_thought(
    message: dict[str, str], server: ScriptedOpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.messages = [message]
    with caplog.at_level(logging.WARNING):
        marked, unmarked = (generate(server, TAGS, drops_thoughts=drops).tokens for drops in (True, False))
    assert marked == unmarked
    assert "drops_thoughts" not in caplog.text


@pytest.mark.parametrize(("preset", "num_warnings"), [("r1", 1), ("qwq", 1), ("qwen3", 0)])
def test_answer_of_a_server_that_drops_thoughts_votes_and_is_warned_of_once(
    preset: str, num_warnings: int, server: ScriptedOpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.messages = [{"content": "It is \\boxed{7}."}]
    settings = (*SERVED, f"engine.urls={server.url}", f"thinking@model.thinking={preset}")
    with caplog.at_level(logging.WARNING), reason.load(*settings) as solver:
        solution = solver.solve("3+4?")
    assert solution.votes == {"7": 3}
    assert (solution.answer, solution.thought, solution.text) == ("7", "", "It is \\boxed{7}.")
    assert caplog.text.count("engine.drops_thoughts=false reads them as thoughts that did not end") == num_warnings
    with reason.load(*settings, "engine.drops_thoughts=false") as solver:
        assert solver.solve("3+4?").answer == (None if num_warnings else "7")


@pytest.mark.parametrize(
    "settings",
    [
        ("engine.prefill=true", "thinking@model.thinking=r1"),
        ("model.prompt.raw='{question}'", "thinking@model.thinking=r1"),
        (),
    ],
)
def test_thought_is_dropped_only_where_a_server_begins_answers_of_a_thinking_model(
    settings: tuple[str, ...],
) -> None:
    composed = compose_settings([*SERVED, *settings, "engine.drops_thoughts=true"])
    with pytest.raises(reason.ConfigError, match=r"engine\.drops_thoughts is for engine\.api=chat without"):
        validate_settings(*composed)


@pytest.mark.parametrize("settings", [("engine.prefill=true",), ("model.prompt.raw='{question}'",)])
def test_server_that_continues_a_text_sends_its_thought(settings: tuple[str, ...]) -> None:
    spec = validate_settings(*compose_settings([*SERVED, *settings, "thinking@model.thinking=r1"]))
    assert isinstance(spec.engine.settings, OpenAISettings)
    assert spec.engine.settings.drops_thoughts is False
