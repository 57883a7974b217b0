"""Errors have OpenAI's format, and name the field and the valid values, whatever a client sends."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from reason.serve.unsupported_fields import UNSUPPORTED_FIELDS
from tests.support.toy_server import ToySearchService, chat_body, error_of, running_server, serve_settings, toy_server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def refused(client: httpx.Client, body: Any, path: str = CHAT, status: int = 400) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    return error_of(response)


TEXT_BODY = {"model": "best-of-4", "prompt": "Question: 3?"}
ASKING = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "parallel_tool_calls": "yes",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "response_format": {"type": "json_object"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "x"},
    "web_search_options": {},
    "prediction": {"type": "content"},
    "verbosity": "low",
    "top_logprobs": 3,
    "frequency_penalty": 0.5,
    "presence_penalty": -1,
    "logit_bias": {"1": 2},
    "echo": True,
    "suffix": "x",
    "best_of": 3,
    "store": True,
    "previous_response_id": "resp_1",
    "conversation": "conv_1",
    "background": True,
    "truncation": "auto",
    "prompt": {"id": "p"},
    "max_tool_calls": 3,
    "context_management": [],
    "prompt_cache_options": {},
    "service_tier": "flex",
}


@pytest.mark.parametrize("field", UNSUPPORTED_FIELDS)
def test_unsupported_field_is_refused_by_name(toy: httpx.Client, field: str) -> None:
    body, path = (chat_body(), CHAT) if field == "prompt" else (TEXT_BODY, TEXT)
    error = refused(toy, body | {field: ASKING[field]}, path)
    assert (error["param"], error["code"], error["type"]) == (field, "unsupported_field", "invalid_request_error")
    assert error["message"].startswith(f"{field} is not supported: ")


def test_unsupported_fields_with_neutral_values_are_accepted(toy: httpx.Client) -> None:
    neutral = {field: values[0] if values else None for field, (values, _) in UNSUPPORTED_FIELDS.items()}
    harmless = {"user": "me", "metadata": {"run": "1"}, "safety_identifier": "x", "prompt_cache_key": "y"}
    assert toy.post(CHAT, json=chat_body(**neutral, **harmless)).status_code == 200
    assert toy.post(TEXT, json=neutral | harmless | TEXT_BODY).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temprature": 1}, "temprature"),
        ({"n": 0}, "n"),
        ({"n": "2"}, "n"),
        ({"n": 5}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": 3}, "stop"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 61}, "timeout"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"usage": True}}, "stream_options.usage"),
        ({"search": {"widht": 3}}, "search.widht"),
        ({"search": {"n": 0}}, "search.n"),
        ({"search": {"n": 65}}, "search.n"),
        ({"search": {"n": "4"}}, "search.n"),
        ({"search": {"_target_": "os.system"}}, "search._target_"),
        ({"search": {"sampling": 3}}, "search.sampling"),
        ({"search": {"sampling": {"temperature": 1}}}, "search.sampling.temperature"),
        ({"search": {"sampling": {"topk": 1}}}, "search.sampling.topk"),
        ({"search": {"sampling": {"top_k": 2**31}}}, "search.sampling.top_k"),
        ({"search": {"agg_strategy": "${oc.env:HOME}"}}, "search.agg_strategy"),
        ({"budget": {"seconds": 3}}, "budget.seconds"),
        ({"budget": {"tokens": 0}}, "budget.tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "messages.0.tool_calls.0.id"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages.0.content"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages.0.name"),
        ({"messages": [{"role": "user", "content": "x" * 1001}]}, "messages"),
    ],
)
def test_wrong_value_is_refused_with_its_field(toy: httpx.Client, body: dict[str, Any], param: str) -> None:
    error = refused(toy, chat_body(**body))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.split(".")[-1] in error["message"] or param.startswith("messages")


def test_unknown_search_setting_is_refused_with_the_valid_ones(toy: httpx.Client) -> None:
    message = refused(toy, chat_body(search={"agg_stratgy": "min"}))["message"]
    expected = "there is no setting search.agg_stratgy (did you mean search.agg_strategy?)"
    assert (
        message == f"{expected}; search has: agg_strategy, drop_percentile, drop_window, n, sampling, unscored, warm_up"
    )


def test_search_setting_is_text_without_interpolation(toy: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra would put the value of the environment variable into its error message."""
    monkeypatch.setenv("SECRET", "hunter2")
    message = refused(toy, chat_body(search={"agg_strategy": "${oc.env:SECRET}"}))["message"]
    assert "${oc.env:SECRET}" in message
    assert "hunter2" not in message


def test_missing_fields_and_unknown_models_are_named(toy: httpx.Client) -> None:
    assert refused(toy, {"model": "best-of-4"})["param"] == "messages"
    assert refused(toy, {"prompt": "x"}, TEXT)["param"] == "model"
    error = refused(toy, chat_body(model="gpt"), status=404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error["message"].endswith("choose one of: best-of-4, majority-16")


@pytest.mark.parametrize("prompt", ["", " ", [], ["a", "b"], [1, 2], [[1]], 3, None])
def test_completion_prompt_must_be_one_text(toy: httpx.Client, prompt: Any) -> None:
    assert str(refused(toy, {"model": "best-of-4", "prompt": prompt}, TEXT)["param"]).startswith("prompt")


def test_unknown_addresses_and_methods_are_404_and_405(toy: httpx.Client) -> None:
    for method, path, status in (("GET", "/v1/nope", 404), ("GET", CHAT, 405), ("DELETE", "/v1/models", 405)):
        response = toy.request(method, path)
        assert response.status_code == status
        assert path in error_of(response)["message"]
    for path in (
        "/v1/models/gpt",
        "/trees/0123",
        f"/trees/{'0' * 32}",
        f"/trees/{'0' * 32}.json",
        "/trees/..%2f..%2fx",
    ):
        response = toy.get(path)
        assert response.status_code == 404
        error_of(response)


def chunks(size: int) -> Any:
    yield from (b" " * 1024 for _ in range(size >> 10))


@pytest.mark.parametrize("content", [b" " * (65 << 10), chunks(80 << 10)], ids=["declared", "undeclared"])
def test_too_large_body_is_413(content: Any) -> None:
    with toy_server(body_kib=64) as (client, _):
        response = client.post(CHAT, content=content, headers={"content-type": "application/json"})
        assert response.status_code == 413
        assert "serve.body_kib" in error_of(response)["message"]


TEXT_LIKE = st.text("a1 {}$.\n\x00é\ud800", max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT_LIKE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT_LIKE, inner, max_size=3),
    max_leaves=5,
)
FIELDS = sorted({"model", "messages", "prompt", "n", "seed", "stop", "search", "budget", "stream", *UNSUPPORTED_FIELDS})
QUIET = hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUIET
@given(body=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), valid=st.booleans())
def test_no_json_body_breaks_the_server(toy: httpx.Client, body: dict[str, Any], valid: bool) -> None:
    text = json.dumps(chat_body(**body) if valid else body)  # half characters and numbers that are none, too
    for path in (CHAT, TEXT):
        response = toy.post(path, content=text.encode(), headers={"content-type": "application/json"})
        assert response.status_code in (200, 400, 404), response.text
        if response.status_code != 200:
            error_of(response)


@QUIET
@given(content=st.binary(max_size=200))
def test_no_bytes_of_a_body_break_the_server(toy: httpx.Client, content: bytes) -> None:
    response = toy.post(CHAT, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error_of(response)


@pytest.mark.parametrize("text", ["[" * 30_000, '{"a":' * 5_000, '{"n": ' + "9" * 5000 + "}", '{"n": 1e999}'])
def test_malicious_json_is_400(toy: httpx.Client, text: str) -> None:
    response = toy.post(CHAT, content=text, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error_of(response)


def test_requests_during_model_loading_are_503() -> None:
    service = ToySearchService(serve_settings())
    service.loads.clear()
    with running_server(service, wait=False) as url, httpx.Client(base_url=url) as client:
        try:
            for response in (client.get("/health"), client.post(CHAT, json=chat_body())):
                assert response.status_code == 503
                assert int(response.headers["retry-after"]) > 0
                assert error_of(response)["code"] == "loading"
            assert client.get("/v1/models").status_code == 200
        finally:
            service.loads.set()


def test_failed_search_is_500_and_the_next_one_works(own_toy: tuple[httpx.Client, ToySearchService]) -> None:
    client, service = own_toy
    service.writer.broken = True
    response = client.post(CHAT, json=chat_body())
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "RuntimeError" in error_of(response)["message"]
    service.writer.broken = False
    assert client.post(CHAT, json=chat_body()).status_code == 200


def test_failed_search_ends_its_stream_with_an_error(own_toy: tuple[httpx.Client, ToySearchService]) -> None:
    client, service = own_toy
    service.writer.broken = True
    lines = client.post(CHAT, json=chat_body(stream=True)).text.split("\n\n")
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "internal_error"
    assert "data: [DONE]" not in lines
    assert 'status="500"' in client.get("/metrics").text
