"""A server with a toy engine: real sockets, no model, and an engine that tests can hold up or break."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx

from decoding.core import Generation, GenerationRequest, Tokens
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer
from reason.prompt import PromptFormat
from reason.serve.presets import PresetCatalog, load_presets
from reason.serve.server import SearchServer
from reason.serve.service import SearchService
from reason.serve.settings import ServeSettings
from reason.solver import Solver
from search.strategies.best_of_n import BestOfN
from tests.support.toy_search import ToyEngine, ToyScorer, decode_bytes

QUESTION = "What is 3?"
SETTINGS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 0,
    "api_key": None,
    "presets": None,
    "branches": 256,
    "concurrency": 2,
    "queue": 2,
    "attempts": 2,
    "timeout": 60,
    "body_kib": 64,
    "largest": 64,
    "keep": 8,
    "replays": 8,
    "folder": None,
    "public_url": None,
    "prices": None,
    "grace": 1,
    "cors_origins": None,
    "max_connections": 400,
    "receive_timeout_s": 30,
    "send_timeout_s": 30,
}


def serve_settings(**changes: Any) -> ServeSettings:
    return ServeSettings(**(SETTINGS | changes))


@cache
def toy_catalog() -> PresetCatalog:
    """Returns two presets of the real configuration; their models are never loaded."""
    return load_presets(["speculation=off"], ["best-of-4", "majority-16"])


class HoldableEngine(ToyEngine):
    """A toy engine that waits while `held` and raises while `broken`; `under_way` counts unfinished calls."""

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

    def assert_invariants(self) -> None:
        assert self.under_way == 0, f"{self.under_way} calls are under way"


class RawBytePrompt:
    """Encodes a question as its bytes; like the bundled model it has no chat template."""

    format = PromptFormat(raw="Question: {question}\n")
    is_rendered_by_server = offers_tools = False

    def encode(self, question: str) -> Tokens:
        return self.encode_text(f"Question: {question}\n")

    def encode_text(self, text: str) -> Tokens:
        return tuple(text.encode())

    def decode(self, tokens: Tokens) -> str:
        return decode_bytes(tokens)

    def encode_continuation(self, text: str) -> Tokens:
        return tuple(text.encode("latin-1"))

    def decode_last_turn(self, prompt: Tokens) -> str:
        return decode_bytes(prompt)


class ToyPrm:
    """A scorer that gives scores: the server refuses presets that need scores where the scorer gives none."""

    gives_scores = True
    num_top = 0
    servers = None

    def validate(self) -> None: ...
    def validate_writer(self, writer: Checkpoint) -> None: ...
    def load(self, writer: PretrainedTokenizer | None = None) -> None: ...
    def close(self) -> None: ...

    def bind(self, question: str, prompt: Tokens) -> ToyScorer:
        return ToyScorer()


class ToySearchService(SearchService):
    """The real service with a toy solver instead of models."""

    def __init__(self, serve_settings: ServeSettings, catalog: PresetCatalog | None = None) -> None:
        super().__init__(serve_settings, catalog or toy_catalog())
        self.writer = HoldableEngine()
        self.loads = threading.Event()
        self.loads.set()

    def load(self) -> None:
        self.loads.wait()
        prompt: Any = RawBytePrompt()
        scorer = ToyPrm()
        self.solver = Solver(
            strategy=BestOfN(n=4), engine=self.writer, scorer=scorer, prompt=prompt, context_window=1000
        )


def list_stacks() -> str:
    """Returns where every thread is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = sys._current_frames().items()  # the documented way
    return "\n".join(f"{names.get(ident)}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in stacks)


@contextmanager
def running_server(service: SearchService, *, wait: bool = True) -> Iterator[str]:
    """Yields the address of a server that runs in its own thread; asserts at the end that it stops."""
    server, ready, errors = SearchServer(service), threading.Event(), []

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
        assert not thread.is_alive(), list_stacks()


@contextmanager
def toy_server(**changes: Any) -> Iterator[tuple[httpx.Client, ToySearchService]]:
    service = ToySearchService(serve_settings(**changes))
    with running_server(service) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client, service


def chat_body(**fields: Any) -> dict[str, Any]:
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


def wait_until(true: Callable[[], bool]) -> None:
    """Waits until `true` returns true, at most a minute."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "the condition did not become true within a minute"
        time.sleep(0.005)
