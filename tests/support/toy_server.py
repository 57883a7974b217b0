"""A server with a toy behind it: real sockets, no model, and a writer that can be held up or broken."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx

from decoding.core import Generation, GenerationRequest, Tokens
from reason.prompt import PromptFormat
from reason.serve.presets import Offer, offer
from reason.serve.server import Server
from reason.serve.service import Service
from reason.serve.settings import ServeSettings
from reason.solver import Solver
from search.strategies.best_of_n import BestOfN
from tests.support.toy_search import ToyEngine, ToyScorer, decode

QUESTION = "What is 3?"
SETTINGS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 0,
    "api_key": None,
    "presets": None,
    "concurrency": 2,
    "queue": 2,
    "timeout": 60,
    "body_kib": 64,
    "largest": 64,
    "keep": 8,
    "folder": None,
    "grace": 1,
}


def settings(**changes: Any) -> ServeSettings:
    return ServeSettings(**(SETTINGS | changes))


@cache
def toy_offer() -> Offer:
    """Two presets of the real configuration; their models are never loaded."""
    return offer(["speculation=off"], ["best-of-4", "majority-16"])


class Writer(ToyEngine):
    """A toy that waits while `held`, and breaks when `broken`; `under_way` counts calls that have not come back."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.broken = False
        self.under_way = 0

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.under_way += 1
        try:
            while self.held:
                await asyncio.sleep(0.005)
            if self.broken:
                raise RuntimeError("the toy broke")
            return await super().generate(requests)
        finally:
            self.under_way -= 1

    def check(self) -> None:
        assert self.under_way == 0, f"{self.under_way} calls are under way"


class BytePrompt:
    """Encodes a question as its bytes; knows no conversations, as the bundled model."""

    form = PromptFormat(raw="Question: {question}\n")

    def encode(self, question: str) -> Tokens:
        return self.encode_text(f"Question: {question}\n")

    def encode_text(self, text: str) -> Tokens:
        return tuple(text.encode())

    def decode(self, tokens: Tokens) -> str:
        return decode(tokens)


class ToyPrm:
    """A scorer that scores; the server asks whether it has one that does not."""

    def check(self) -> None: ...
    def load(self, writer: Any = None) -> None: ...
    def close(self) -> None: ...

    def bind(self, question: str, prompt: Tokens) -> Any:
        return ToyScorer()


class ToyService(Service):
    """The real service, but for what it loads."""

    def __init__(self, given: ServeSettings) -> None:
        super().__init__(given, toy_offer())
        self.writer = Writer()
        self.loads = threading.Event()
        self.loads.set()

    def load(self) -> None:
        self.loads.wait()
        prompt: Any = BytePrompt()
        self.solver = Solver(strategy=BestOfN(n=4), engine=self.writer, scorer=ToyPrm(), prompt=prompt, window=1000)


@contextmanager
def serving(service: Service, *, wait: bool = True) -> Iterator[str]:
    """The address of a server in a thread of its own; it is stopped at the end, and must stop."""
    server, ready, errors = Server(service), threading.Event(), []

    def run() -> None:
        try:
            server.run(ready.set)
        except Exception as error:
            errors.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="server")
    thread.start()
    try:
        if wait:
            assert ready.wait(300)
        assert not errors, errors
        yield server.url
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def toy_server(**changes: Any) -> Iterator[tuple[httpx.Client, ToyService]]:
    service = ToyService(settings(**changes))
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client, service


def chat(**fields: Any) -> dict[str, Any]:
    """The body of a request; `fields` are added or replaced."""
    return {"model": "best-of-4", "messages": [{"role": "user", "content": QUESTION}]} | fields


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error in a response, which must have OpenAI's shape."""
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    return error


def until(true: Callable[[], bool]) -> None:
    """Waits for something that must come about."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)
