"""Engines that are tried against hostile servers, with short limits, and what their generations and errors must be."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from decoding.core import Generation, GenerationRequest, OversizedRequest, SamplingParams
from decoding.stopping import StopRule
from reason.engines.http.engine import HttpEngine
from reason.engines.http.errors import NoServer, RequestRejected
from reason.engines.http.settings import ServerSettings
from reason.engines.openai_api.engine import OpenAIEngine
from reason.engines.openai_api.settings import OpenAISettings
from reason.engines.sglang_client.dispatcher import Dispatcher
from reason.engines.sglang_client.engine import SGLangEngine
from reason.engines.sglang_client.settings import SGLangSettings
from reason.models.byte_tokenizer import ByteTokenizer
from tests.support.hostile_exchange import Behaviour, Outcome
from tests.support.hostile_replies import END_TOKEN, MODEL, REPLY_TEXT, Dialect
from tests.support.scripted_sglang_server import ByteVocabulary

KEY = "sk-0123456789abcdef-secret"
MAX_TOKENS = 64
LIMIT_S = 120.0  # of one generation; against a hang, not a promise
QUICK: dict[str, Any] = {
    "request_timeout_s": 2.0,
    "token_timeout_s": 0.01,
    "idle_timeout_s": 1.0,
    "unavailable_timeout_s": 1.5,
    "cooldown_s": 0.1,
    "max_retries": 2,
    "max_reply_mb": 1,
    "min_backoff_s": 0.05,
    "max_backoff_s": 0.2,
}
"""Settings with which a trial ends within seconds."""
STEADY: dict[str, Any] = {
    "request_timeout_s": 12.0,
    "idle_timeout_s": 6.0,
    "unavailable_timeout_s": 40.0,
    "max_retries": 4,
}
"""Where a healthy server must not seem sick only because this machine is busy."""

PATIENT: dict[str, Any] = {"request_timeout_s": 60.0, "token_timeout_s": 1.0, "idle_timeout_s": 60.0}
"""For a server whose replies, refusals included, must be read however busy this machine is."""


class StrictByteTokenizer(ByteTokenizer):
    """Refuses half of a surrogate pair, as tokenizers of real models do."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        try:
            return list(text.encode())
        except UnicodeEncodeError as error:
            raise TypeError("TextInputSequence must be str") from error


def settings_for(dialect: Dialect, urls: Sequence[str], **changes: Any) -> ServerSettings:
    if dialect == "sglang":
        return SGLangSettings(urls=list(urls), **(QUICK | changes))
    more: dict[str, Any] = {"model": MODEL, "api": "completions", "api_key": KEY, "logprobs": True}
    return OpenAISettings(urls=list(urls), **(more | QUICK | changes))


def connect(dialect: Dialect, *urls: str, **changes: Any) -> HttpEngine:
    """Returns an engine with the settings `QUICK`, changed by `changes`."""
    settings = settings_for(dialect, urls, **changes)
    if isinstance(settings, OpenAISettings):
        return OpenAIEngine(settings, tokenizer=StrictByteTokenizer())
    vocabulary = ByteVocabulary()
    rule = StopRule(vocabulary.decode, frozenset({END_TOKEN}))
    return SGLangEngine(Dispatcher(settings), stop_rule=rule, vocab_size=END_TOKEN + 1, tokenizer=vocabulary)


def requests_for(problem: str = "p") -> list[GenerationRequest]:
    """Returns a request for a whole answer and one for a step, which `engine=openai` streams; no reply has its end."""
    all_params = [SamplingParams(max_tokens=MAX_TOKENS, stop=stop) for stop in ((), ("zz",))]
    return [GenerationRequest(prefix=(81, 63), params=params, seed=5, group=problem) for params in all_params]


def generate_each(engine: HttpEngine, requests: Sequence[GenerationRequest]) -> list[Generation | BaseException]:
    """Returns what becomes of each request, sent at once. Raises: AssertionError where one takes too long."""

    async def bounded() -> list[Generation | BaseException]:
        calls = [asyncio.create_task(engine.generate([request])) for request in requests]
        _, late = await asyncio.wait(calls, timeout=LIMIT_S)
        assert not late, f"{len(late)} of {len(calls)} requests: no end within {LIMIT_S:g} s"
        results = await asyncio.gather(*calls, return_exceptions=True)
        return [result if isinstance(result, BaseException) else result[0] for result in results]

    return asyncio.run(bounded())


def require_sane(generation: Generation, *, alters_text: bool = False) -> None:
    """Asserts that a generation can be believed: its tokens, its log-probabilities and its counts."""
    tokens, logprobs, usage = generation.tokens, generation.logprobs, generation.usage
    if not alters_text:
        assert bytes(token for token in tokens if token < END_TOKEN) == REPLY_TEXT.encode(), f"tokens {tokens}"
    assert all(type(token) is int and 0 <= token <= END_TOKEN for token in tokens), f"tokens {tokens}"
    assert all(type(value) is float and math.isfinite(value) and value <= 0 for value in logprobs), logprobs
    assert generation.finish in ("stop", "eos", "length"), generation.finish
    for name in ("calls", "tokens", "prompt_tokens", "cached_tokens", "forwards", "drafted", "accepted"):
        count = getattr(usage, name)
        assert type(count) is int, f"usage.{name} is {count!r}"
        assert 0 <= count <= 100_000, f"usage.{name} is {count}"
    assert usage.cached_tokens <= max(usage.prompt_tokens, 10), usage
    assert math.isfinite(usage.seconds), usage


def require_harmless(text: str) -> None:
    """Asserts that a message can be shown: one line, no key, nothing that commands a terminal."""
    assert KEY not in text, "the key is in the message"
    assert not [letter for letter in text if not letter.isprintable()], f"control characters in {text[:300]!r}"
    assert len(text) < 2000, f"a message of {len(text)} characters: {text[:100]!r}"


def outcomes_of(engine: HttpEngine, behaviour: Behaviour) -> set[Outcome]:
    """Returns what becomes of a whole answer and a step. Raises: AssertionError where it is nothing promised."""
    return {_classify(result, behaviour) for result in generate_each(engine, requests_for())}


def _classify(result: Generation | BaseException, behaviour: Behaviour) -> Outcome:
    if isinstance(result, Generation):
        require_sane(result, alters_text=behaviour.alters_text)
        return "answered"
    if not isinstance(result, NoServer | RequestRejected | OversizedRequest):
        raise result
    require_harmless(str(result))
    return "fault" if isinstance(result, NoServer) else "rejected"


def require_explained(error: Exception, url: str) -> None:
    """Asserts that an error is one sentence that names the server."""
    require_harmless(str(error))
    assert url in str(error), f"no address in {str(error)!r}"
