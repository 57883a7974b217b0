"""Thoughts and texts are apart in the replies of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from decoding.core import Tokens
from reason.serve.messages import ChatMessage
from reason.thinking import ThinkingFormat
from tests.support.toy_server import ToySearchService, chat_body, toy_server

FORM = ThinkingFormat(opening="<think>", closing="</think>", forced_end="</think>", answer_tokens=0)
THOUGHT, ANSWER = "Maybe 5? answer", "The answer is \\boxed{7}."
INSIDE = f"<think>{THOUGHT}</think>"


@pytest.fixture(scope="module")
def thinker() -> Iterator[httpx.Client]:
    def write(seed: int, prefix: Tokens) -> str:
        del seed, prefix
        return INSIDE + ANSWER

    with toy_server() as (client, service):
        set_up(service, write)
        yield client


def set_up(service: ToySearchService, write: Any) -> None:
    assert service.solver is not None
    service.solver.thinking = FORM
    service.writer.write = write


def answer(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    reply = client.post("/v1/chat/completions", json=chat_body(**fields))
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


def test_reply_has_thought_and_text_apart(thinker: httpx.Client) -> None:
    body = answer(thinker)
    assert body["search"]["answer"] == "7"
    message = body["choices"][0]["message"]
    assert message == {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT}
    assert ChatMessage(**message).content == ANSWER  # a client may send it back


def test_tokens_of_the_thought_are_reasoning_tokens(thinker: httpx.Client) -> None:
    one = len(INSIDE + ANSWER) + 1
    for n in (1, 4):
        usage = answer(thinker, n=n)["usage"]
        assert usage["completion_tokens"] == 4 * one
        reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
        assert reasoning == (4 - n) * one + n * len(INSIDE)


def test_stop_strings_cut_the_text_and_not_the_thought(thinker: httpx.Client) -> None:
    message = answer(thinker, stop="answer")["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("The ", THOUGHT)


def test_unfinished_thought_has_no_content_and_may_be_sent_back(thinker: httpx.Client) -> None:
    choice = answer(thinker, max_tokens=12)["choices"][0]
    assert (choice["finish_reason"], choice["answer"]) == ("length", None)
    assert choice["message"] == {"role": "assistant", "content": None, "reasoning_content": "Maybe"}
    again = [{"role": "user", "content": "3+4?"}, choice["message"], {"role": "user", "content": "and?"}]
    assert answer(thinker, messages=again)["search"]["answer"] == "7"


@pytest.mark.parametrize(("most", "content"), [(500, ANSWER), (12, "")])
def test_stream_sends_the_thought_before_the_content(thinker: httpx.Client, most: int, content: str) -> None:
    with thinker.stream("POST", "/v1/chat/completions", json=chat_body(stream=True, max_tokens=most)) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    kinds = [next(iter(delta), "") for delta in deltas if delta and "role" not in delta]
    assert kinds[:5] == ["reasoning_content"] * 5  # four lines of progress, the thought
    assert set(kinds[5:]) == ({"content"} if content else set())
    assert [d for d in deltas if "reasoning_content" in d][-1]["reasoning_content"] == THOUGHT[: most - 7]
    assert "".join(delta.get("content", "") for delta in deltas) == content


def test_text_completions_are_the_text_as_it_is(thinker: httpx.Client) -> None:
    body = thinker.post("/v1/completions", json={"model": "best-of-4", "prompt": "3+4?"}).json()
    assert body["choices"][0]["text"] == INSIDE + ANSWER
