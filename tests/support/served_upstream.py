"""A server of ours in front of a scripted one: every candidate is a reply of that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from reason.serve.presets import load_presets
from reason.serve.service import SearchService
from tests.support.scripted_openai_server import ScriptedOpenAIServer
from tests.support.toy_server import running_server, serve_settings

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class ServedUpstream:
    """A client of our server, and the scripted server behind it."""

    client: httpx.Client
    server: ScriptedOpenAIServer

    def script(self, *messages: dict[str, Any]) -> None:
        """Sets what the scripted server generates (`ScriptedOpenAIServer.messages`); forgets its requests."""
        self.server.messages = list(messages)
        self.server.bodies.clear()


@contextmanager
def served_upstream(*settings: str, **changes: Any) -> Iterator[ServedUpstream]:
    """Yields our server with these settings and changes of `serve_settings`, in front of a scripted one."""
    with closing(ScriptedOpenAIServer()) as upstream:
        overrides = ["engine=openai", f"engine.urls=[{upstream.url}]", "engine.model=toy", *settings]
        service = SearchService(serve_settings(**changes), load_presets(overrides, ["majority-16"]))
        with running_server(service) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield ServedUpstream(client, upstream)


def upstream_body(n: int = 4, **fields: Any) -> dict[str, Any]:
    """The body of a request with `n` candidates; `fields` are added or replaced."""
    messages = [{"role": "user", "content": "How many?"}]
    return {"model": "majority-16", "messages": messages, "search": {"n": n}} | fields


def stream_events(client: httpx.Client, body: dict[str, Any], path: str = CHAT) -> list[dict[str, Any]]:
    """The JSON events of a streamed reply, without comments and the last mark."""
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def called(name: str, arguments: str) -> dict[str, Any]:
    """The message of a scripted server that calls one tool."""
    return {"tool_calls": [{"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}]}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A tool whose parameters are all required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}
