"""`logprobs` are those of the tokens of the chosen text, in both endpoints' forms; refused where there are none."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from reason.serve.service import SearchService
from tests.support.served_upstream import CHAT, ServedUpstream, stream_events, upstream_body
from tests.support.toy_server import chat_body, error_of

TEXT = "/v1/completions"


def test_chat_logprobs_spell_the_content(bundled: tuple[str, SearchService]) -> None:
    with httpx.Client(base_url=bundled[0], timeout=60) as client:
        reply = client.post(CHAT, json=chat_body(logprobs=True, n=2)).json()
        tree = client.get(f"{reply['search']['tree']}.json").json()
    for choice in reply["choices"]:
        entries = choice["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
        assert all(entry["logprob"] <= 0 and math.isfinite(entry["logprob"]) for entry in entries)
        assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in entries)
        assert all(entry["top_logprobs"] == [] for entry in entries)
    logprobs = [round(entry["logprob"], 6) for entry in reply["choices"][0]["logprobs"]["content"]]
    paths = [node["logprobs"] for node in tree["nodes"]]
    assert any(path[:1] == logprobs[:1] for path in paths)


def test_completion_logprobs_have_offsets_and_end_at_a_stop(toy: httpx.Client) -> None:
    body = {"model": "best-of-4", "prompt": "Question: 3?", "logprobs": 0, "stop": ["boxed"]}
    choice = toy.post(TEXT, json=body).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["token_logprobs"] == [-0.5] * len(logprobs["tokens"])
    assert logprobs["text_offset"] == list(range(len(choice["text"])))


def test_stream_has_them_beside_the_text(toy: httpx.Client) -> None:
    (event,) = [e for e in stream_events(toy, chat_body(logprobs=True)) if e["choices"][0]["delta"].get("content")]
    choice = event["choices"][0]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == choice["delta"]["content"]


def test_not_requested_is_null(toy: httpx.Client) -> None:
    assert toy.post(CHAT, json=chat_body(logprobs=False)).json()["choices"][0]["logprobs"] is None
    body = {"model": "best-of-4", "prompt": "Question: 3?", "logprobs": False}
    assert toy.post(TEXT, json=body).json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("fields", [{"logprobs": True, "top_logprobs": 2}, {"top_logprobs": 1}])
def test_alternatives_are_refused_with_the_reason(toy: httpx.Client, fields: dict[str, Any]) -> None:
    error = error_of(toy.post(CHAT, json=chat_body(**fields)))
    assert (error["param"], error["code"]) == ("top_logprobs", "unsupported_field")


def test_refused_where_the_engine_has_none(upstream: ServedUpstream) -> None:
    error = error_of(upstream.client.post(CHAT, json=upstream_body(2, logprobs=True)))
    assert (error["param"], error["code"]) == ("logprobs", "unsupported_field")
