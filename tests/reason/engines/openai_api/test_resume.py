"""A long text is streamed, and goes on behind what has come where the server can continue a text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams
from reason.engines.http.errors import NoServer
from reason.engines.openai_api.engine import OpenAIEngine
from reason.engines.openai_api.settings import OpenAISettings
from reason.models.byte_tokenizer import ByteTokenizer
from tests.support.scripted_openai_server import REPLY_TEXT, ScriptedOpenAIServer

Serve = Callable[..., ScriptedOpenAIServer]
CONVERSATION = ByteTokenizer().apply_chat_template(
    [{"role": "user", "content": "1+1?"}], tokenize=False, add_generation_prompt=True
)


def run(
    *servers: ScriptedOpenAIServer, deadline: float | None = None, stop: tuple[str, ...] = (), **settings: Any
) -> tuple[Generation, OpenAIEngine]:
    """Returns a long generation, and the closed engine."""
    quick: dict[str, Any] = {
        "cooldown_s": 0.1,
        "min_backoff_s": 0.05,
        "max_backoff_s": 0.1,
        "model": "toy",
        "api": "completions",
    }
    urls = [server.url for server in servers]
    engine = OpenAIEngine(OpenAISettings(urls=urls, **(quick | settings)), tokenizer=ByteTokenizer())
    prompt = CONVERSATION if settings.get("api") == "chat" else "Q?"
    request = GenerationRequest(
        prefix=tuple(prompt.encode()), params=SamplingParams(max_tokens=2000, stop=stop), seed=5, deadline=deadline
    )
    try:
        (generation,) = asyncio.run(engine.generate([request]))
        return generation, engine
    finally:
        engine.close()


def text_of(generation: Generation) -> str:
    return bytes(token for token in generation.tokens if token < 256).decode()


def test_text_that_broke_off_is_continued_with_noise_of_its_own(serve: Serve) -> None:
    server = serve("cut")
    generation, engine = run(server)
    first, second = server.bodies
    assert first["stream"] is True
    assert (first["prompt"], second["prompt"]) == ("Q?", "Q?" + REPLY_TEXT[:3])
    assert (first["max_tokens"], second["max_tokens"]) == (2000, 1997)
    assert first["seed"] != second["seed"]
    assert text_of(generation) == REPLY_TEXT[:3] + REPLY_TEXT
    assert (engine.stats.reissued, engine.stats.resumed, engine.stats.kept_tokens) == (1, 1, 3)


@pytest.mark.parametrize("prefill", [True, False])
def test_chat_is_continued_only_where_the_server_can(serve: Serve, prefill: bool) -> None:
    server = serve("cut")
    generation, engine = run(server, api="chat", prefill=prefill)
    assert text_of(generation) == (REPLY_TEXT[:3] if prefill else "") + REPLY_TEXT
    assert engine.stats.resumed == int(prefill)
    assert len(server.bodies[1]["messages"]) == 1 + prefill


def test_stop_string_in_both_parts_is_found(serve: Serve) -> None:
    server = serve("cut", says_ended=False)  # "One" and then "One.\n\nTwo."
    generation, _ = run(server, stop=("eOn",))
    assert (text_of(generation), generation.finish) == ("OneOn", "stop")


def test_deadline_keeps_the_text_that_has_come(serve: Serve) -> None:
    server = serve("stall")
    generation, engine = run(server, deadline=time.monotonic() + 1.0)
    assert (text_of(generation), generation.finish) == (REPLY_TEXT[:3], "deadline")
    assert engine.stats.aborted == 1


def test_deadline_before_any_text_is_empty(serve: Serve) -> None:
    generation, _ = run(serve("hang"), deadline=time.monotonic() + 0.3)
    assert (generation.tokens, generation.finish) == ((), "deadline")


def test_text_without_end_that_cannot_be_continued_is_given_up(serve: Serve) -> None:
    server = serve()
    server.write, server.pause_s = lambda _: "1" * 2000, 0.001  # hundreds of tokens an attempt, all thrown away
    limits: dict[str, Any] = {"request_timeout_s": 0.5, "token_timeout_s": 1e-5, "max_retries": 2}
    with pytest.raises(NoServer, match="2 replies to this request were lost"):
        run(server, api="chat", prefill=False, **limits)
    assert len(server.bodies) == 2
