"""Scripted servers, and engines over them, for the tests of one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from decoding.stopping import StopRule
from reason.engines.sglang_client.dispatcher import Dispatcher
from reason.engines.sglang_client.engine import SGLangEngine
from reason.engines.sglang_client.settings import SGLangSettings
from tests.support.scripted_sglang_server import Act, ByteVocabulary, ScriptedSGLangServer

Serve = Callable[..., ScriptedSGLangServer]
Connect = Callable[..., SGLangEngine]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ScriptedSGLangServer] = []

    def start(*script: Act, **more: Any) -> ScriptedSGLangServer:
        servers.append(ScriptedSGLangServer(script, **more))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def connect() -> Iterator[Connect]:
    engines: list[SGLangEngine] = []

    def start(*servers: ScriptedSGLangServer, **more: Any) -> SGLangEngine:
        vocabulary = ByteVocabulary()
        model: dict[str, Any] = {"vocab_size": 257, "tokenizer": vocabulary}
        model |= {key: more.pop(key) for key in tuple(more) if key in model}
        quick = {"cooldown_s": 0.2, "unavailable_timeout_s": 20}
        dispatcher = Dispatcher(SGLangSettings(urls=[s.url for s in servers], **(quick | more)))
        rule = StopRule(lambda ids: vocabulary.decode(ids), frozenset({256}))
        engines.append(SGLangEngine(dispatcher, stop_rule=rule, **model))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
