"""`logprobs` are those of the tokens of the chosen text, in both endpoints' forms; refused where there are none."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from reason.serve.presets import load_presets
from reason.serve.service import SearchService
from tests.support.served_upstream import CHAT, ServedUpstream, stream_events, upstream_body
from tests.support.toy_server import ToySearchService, chat_body, error_of, running_server, serve_settings

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
    choices = [e["choices"][0] for e in stream_events(toy, chat_body(logprobs=True))]
    texts = [choice for choice in choices if choice["delta"].get("content")]
    assert len(texts) > 1
    for choice in texts:
        assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == choice["delta"]["content"]


def test_stream_of_a_completion_has_offsets_in_the_whole_text(toy: httpx.Client) -> None:
    body = {"model": "best-of-4", "prompt": "Question: 3?", "logprobs": 0}
    whole = toy.post(TEXT, json=body).json()["choices"][0]["logprobs"]
    events = [event["choices"][0] for event in stream_events(toy, body, TEXT)]
    parts = [choice["logprobs"] for choice in events if choice["logprobs"]]
    assert len(parts) > 1
    for field in ("tokens", "token_logprobs", "text_offset"):
        assert [value for part in parts for value in part[field]] == whole[field]


def test_not_requested_is_null(toy: httpx.Client) -> None:
    assert toy.post(CHAT, json=chat_body(logprobs=False)).json()["choices"][0]["logprobs"] is None
    body = {"model": "best-of-4", "prompt": "Question: 3?", "logprobs": False}
    assert toy.post(TEXT, json=body).json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(("preset", "n"), [("best-of-4", 2), ("beam-16", 4), ("confidence-16", 2)])
def test_alternatives_are_the_likeliest_tokens_of_each_place(
    bundled: tuple[str, SearchService], preset: str, n: int
) -> None:
    body = chat_body(model=preset, search={"n": n}, n=n, seed=3)
    with httpx.Client(base_url=bundled[0], timeout=60) as client:
        plain = client.post(CHAT, json=body).json()
        reply = client.post(CHAT, json=body | {"top_logprobs": 4}).json()
    assert [c["message"] for c in reply["choices"]] == [c["message"] for c in plain["choices"]]
    assert reply["search"]["votes"] == plain["search"]["votes"]
    for choice in reply["choices"]:
        for entry in choice["logprobs"]["content"]:
            best = entry["top_logprobs"]
            values = [each["logprob"] for each in best]
            assert len(best) == 4
            assert values == sorted(values, reverse=True)
            assert math.fsum(map(math.exp, values)) <= 1.001
            assert entry["logprob"] <= values[0] + 1e-6
            assert [each["logprob"] for each in best if each["token"] == entry["token"]] in ([], [entry["logprob"]])


def test_greedy_text_is_the_first_alternative_at_every_place(bundled: tuple[str, SearchService]) -> None:
    with httpx.Client(base_url=bundled[0], timeout=60) as client:
        reply = client.post(CHAT, json=chat_body(top_logprobs=1, temperature=0, search={"n": 1})).json()
    entries = reply["choices"][0]["logprobs"]["content"]
    assert len(entries) > 10
    assert [entry["top_logprobs"][0]["token"] for entry in entries] == [entry["token"] for entry in entries]


def test_completions_and_responses_have_alternatives_too(bundled: tuple[str, SearchService]) -> None:
    with httpx.Client(base_url=bundled[0], timeout=60) as client:
        text = client.post(TEXT, json={"model": "best-of-4", "prompt": "Question: 3?", "logprobs": 2}).json()
        (item,) = client.post(
            "/v1/responses", json={"model": "best-of-4", "input": "What is 2 + 3?", "top_logprobs": 2}
        ).json()["output"]
    logprobs = text["choices"][0]["logprobs"]
    assert [1 <= len(best) <= 2 for best in logprobs["top_logprobs"]] == [True] * len(logprobs["tokens"])
    (part,) = item["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])


def test_response_has_logprobs_only_where_it_includes_them(toy: httpx.Client) -> None:
    body = {"model": "best-of-4", "input": "What is 3?"}
    include = {"include": ["message.output_text.logprobs"]}
    (plain,), (full,) = (toy.post("/v1/responses", json=body | more).json()["output"] for more in ({}, include))
    assert plain["content"][0]["logprobs"] == []
    assert "".join(entry["token"] for entry in full["content"][0]["logprobs"]) == full["content"][0]["text"]


def test_alternatives_are_refused_with_the_reason_where_a_router_writes() -> None:
    service = ToySearchService(serve_settings(), load_presets(["router=entropy"], ["best-of-4"]))
    with running_server(service) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert service.solver is not None
        service.solver.router = service.writer  # type: ignore[assignment]  # any: nothing may run
        error = error_of(client.post(CHAT, json=chat_body(top_logprobs=2)))
    assert (error["param"], error["code"]) == ("top_logprobs", "unsupported_field")
    assert "router" in error["message"]


@pytest.mark.parametrize("fields", [{"logprobs": True, "top_logprobs": 2}, {"top_logprobs": 1}])
def test_alternatives_are_refused_where_the_engine_has_no_logprobs(
    upstream: ServedUpstream, fields: dict[str, Any]
) -> None:
    error = error_of(upstream.client.post(CHAT, json=upstream_body(2, **fields)))
    assert (error["param"], error["code"]) == ("logprobs", "unsupported_field")


def test_refused_where_the_engine_has_none(upstream: ServedUpstream) -> None:
    error = error_of(upstream.client.post(CHAT, json=upstream_body(2, logprobs=True)))
    assert (error["param"], error["code"]) == ("logprobs", "unsupported_field")
