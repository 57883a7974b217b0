"""Scripted servers for the tests of one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.scripted_openai_server import Act, ScriptedOpenAIServer

Serve = Callable[..., ScriptedOpenAIServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ScriptedOpenAIServer] = []

    def start(*script: Act, **more: Any) -> ScriptedOpenAIServer:
        servers.append(ScriptedOpenAIServer(script, **more))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
