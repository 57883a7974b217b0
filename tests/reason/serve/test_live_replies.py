"""Streams of a search of one solution have its text while it is written."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import httpx
import pytest

from decoding.core import Generation, GenerationRequest, Tokens
from reason.problem import Problem
from reason.serve.events import search_events
from reason.solver import Solver
from reason.thinking import SplitText, ThinkingFormat
from search.strategies.best_of_n import BestOfN
from tests.support.served_upstream import stream_events
from tests.support.toy_server import HoldableEngine, ToySearchService, chat_body, running_server, serve_settings

FORM = ThinkingFormat(opening="<think>", closing="</think>", forced_end="</think>", answer_tokens=0)
THOUGHT, ANSWER = "Maybe 5? </thin", "The answer is \\boxed{7}. So 7 it is."
Delta = dict[str, Any]


class TellingEngine(HoldableEngine):
    """A toy engine that tells each token; at the places in `waits_at` it waits for `may_go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_at: list[int] = []
        self.may_go_on, self.is_done = threading.Event(), threading.Event()

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        generations = await super().generate(requests)
        for request, generation in zip(requests, generations, strict=True):
            for place, token in enumerate(generation.tokens):
                if place in self.waits_at:
                    while not self.may_go_on.is_set():
                        await asyncio.sleep(0.005)
                if request.on_tokens is not None:
                    request.on_tokens([token])
                    await asyncio.sleep(0.002)  # so that most tokens are sent by themselves
        self.is_done.set()
        return generations


class LiveServer(NamedTuple):
    """A client, and the solver and the engine of its server, which writes an answer without a thought."""

    client: httpx.Client
    solver: Solver
    engine: TellingEngine

    def think(self, form: ThinkingFormat = FORM) -> None:
        """Has the engine write a thought too."""
        self.engine.write = write_thought
        self.solver.thinking = form


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    monkeypatch.setattr("reason.engines.growing_text.INTERVAL_S", 0.001)
    service, engine = ToySearchService(serve_settings()), TellingEngine()
    service.writer, engine.write = engine, write_answer
    with running_server(service) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield LiveServer(client, service.require_solver(), engine)


def write_thought(seed: int, prefix: Tokens) -> str:
    del seed, prefix
    return f"<think>{THOUGHT}</think>{ANSWER}"


def write_answer(seed: int, prefix: Tokens) -> str:
    del seed, prefix
    return ANSWER


def one_solution(**fields: Any) -> dict[str, Any]:
    return chat_body(search={"n": 1}, **fields)


def stream_deltas(client: httpx.Client, body: dict[str, Any]) -> list[Delta]:
    return [choice["delta"] for event in stream_events(client, body) for choice in event["choices"]]


def joined(deltas: Sequence[Delta], name: str) -> str:
    return "".join(delta.get(name) or "" for delta in deltas)


def test_text_arrives_before_the_solution_is_complete(server: LiveServer) -> None:
    engine = server.engine
    engine.waits_at = [10]
    with server.client.stream("POST", "/v1/chat/completions", json=one_solution(stream=True)) as reply:
        text = ""
        for line in reply.iter_lines():  # the engine goes on only when the first ten characters are here
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content") or ""
            if text == ANSWER[:10]:
                engine.may_go_on.set()
    assert text == ANSWER


@pytest.mark.parametrize("fields", [{}, {"stop": "boxed"}, {"stop": ["it is", "So 8"]}, {"max_tokens": 30}, {"n": 1}])
@pytest.mark.parametrize("thinks", [False, True])
def test_stream_is_the_reply_that_is_not_streamed(server: LiveServer, fields: dict[str, Any], *, thinks: bool) -> None:
    client = server.client
    if thinks:
        server.think()
    whole = client.post("/v1/chat/completions", json=one_solution(**fields)).json()["choices"][0]["message"]
    deltas = stream_deltas(client, one_solution(**fields))
    assert joined(deltas, "content") == (whole["content"] or "")
    assert joined(deltas, "reasoning_content") == whole.get("reasoning_content", "")


@pytest.mark.parametrize("fields", [{"logprobs": True}, {"search": {"n": 4}}, {"model": "majority-16"}])
def test_other_streams_have_progress_and_then_the_text(server: LiveServer, fields: dict[str, Any]) -> None:
    deltas = stream_deltas(server.client, chat_body(**fields))
    assert joined(deltas, "reasoning_content").startswith("[")
    assert joined(deltas, "content") == ANSWER


def test_client_that_reads_late_gets_the_latest_text_alone(server: LiveServer) -> None:
    solver, problem = server.solver.with_options(strategy=BestOfN(n=1)), Problem.from_question("3+4?")

    async def read() -> list[object]:
        events = search_events(solver, problem, is_live=True)
        first = await anext(events)
        await asyncio.to_thread(server.engine.is_done.wait)
        return [first, *[event async for event in events]]

    texts = [event.text for event in asyncio.run(read()) if isinstance(event, SplitText)]
    assert len(texts) <= 3
    assert ANSWER.startswith(texts[-1])


def test_thought_that_goes_on_behind_its_end_is_not_sent_live(server: LiveServer) -> None:
    client = server.client
    server.think(replace(FORM, waits=1))
    deltas = stream_deltas(client, one_solution(seed=3))
    whole = client.post("/v1/chat/completions", json=one_solution(seed=3)).json()["choices"][0]["message"]
    assert joined(deltas, "reasoning_content").endswith(whole["reasoning_content"])
    assert joined(deltas, "content") == whole["content"]


def test_text_completions_stream_the_text(server: LiveServer) -> None:
    body = {"model": "best-of-4", "prompt": "3+4?", "search": {"n": 1}}
    events = stream_events(server.client, body, "/v1/completions")
    assert "".join(choice["text"] for event in events for choice in event["choices"]) == ANSWER


@pytest.mark.parametrize("fields", [{}, {"max_output_tokens": 12}, {"max_output_tokens": 30}])
@pytest.mark.parametrize("thinks", [False, True])
def test_items_of_responses_grow_in_order_and_end_as_they_are_without_a_stream(
    server: LiveServer, fields: dict[str, Any], *, thinks: bool
) -> None:
    client = server.client
    if thinks:
        server.think()
    body = {"model": "best-of-4", "input": "3+4?", "search": {"n": 1}} | fields
    events = stream_events(client, body, "/v1/responses")
    whole = client.post("/v1/responses", json=body).json()["output"]
    texts: dict[str, str] = {}
    for event in events:
        if "delta" in event:
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    assert list(texts.values()) == [item["content"][0]["text"] for item in whole]
    ended = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["content"] for item in ended] == [item["content"] for item in whole]
    begun = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert begun == list(range(len(whole)))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize("num_alternatives", [0, 2])
def test_library_is_told_the_text_with_and_without_likely_tokens(server: LiveServer, num_alternatives: int) -> None:
    texts: list[SplitText] = []
    problem = replace(Problem.from_question("3+4?"), num_alternatives=num_alternatives)
    server.solver.with_options(strategy=BestOfN(n=1), on_text=texts.append).solve(problem)
    assert len(texts) > 1
    assert all(ANSWER.startswith(split.text) for split in texts)
