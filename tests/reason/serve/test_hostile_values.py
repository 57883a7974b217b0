"""Whatever value a field of a request has, the answer is no 500, and a refusal names the field."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from reason.serve.presets import load_presets
from reason.serve.schemas import ChatCompletionRequest, TextCompletionRequest
from search.strategies.mcts import Mcts
from tests.support.searches import search_classes
from tests.support.toy_server import ToySearchService, chat_body, error_of, running_server, serve_settings

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HALF = "x\ud800"
MESSAGE = {"role": "user", "content": "1+1?"}


@pytest.fixture(scope="module")
def searching() -> Iterator[httpx.Client]:
    """A toy server with presets of several searches."""
    catalog = load_presets(["speculation=off"], ["best-of-4", "mcts-32", "beam-16"])
    service = ToySearchService(serve_settings(body_kib=256), catalog)
    with running_server(service) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def post(client: httpx.Client, body: object, path: str = CHAT) -> httpx.Response:
    """Posts any JSON, also what httpx would not encode: half characters, NaN, infinity."""
    return client.post(path, content=json.dumps(body).encode(), headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat_body(messages=[{"role": "user", "content": HALF}]), "messages.0.content"),
        (chat_body(messages=[{"role": "system", "content": HALF}, MESSAGE]), "messages.0.content"),
        (chat_body(messages=[{"role": "assistant", "content": HALF}, MESSAGE]), "messages.0.content"),
        (
            chat_body(messages=[{"role": "user", "content": [{"type": "text", "text": HALF}]}]),
            "messages.0.content.0.text",
        ),
        (chat_body(messages=[MESSAGE | {"reasoning_content": HALF}]), "messages.0.reasoning_content"),
        (chat_body(model=HALF), "model"),
        (chat_body(stop=HALF), "stop"),
        (chat_body(stop=["7", HALF]), "stop.1"),
        (chat_body(user=HALF), "user"),
        (chat_body(metadata={"run": {"by": [HALF]}}), "metadata.run.by.0"),
        (chat_body(metadata={HALF: 1}), "a name in metadata"),
        (chat_body(safety_identifier=HALF), "safety_identifier"),
        (chat_body(search={"agg_strategy": HALF}), "search.agg_strategy"),
        (chat_body(search={"sampling": {"stop": [HALF]}}), "search.sampling.stop.0"),
        (chat_body(tools=[HALF]), "tools.0"),
        (chat_body(**{HALF: 1}), "a name"),
    ],
    ids=str,
)
def test_text_that_is_not_unicode_is_400_with_its_field(toy: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = post(toy, body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert error["message"].startswith(f"{param} must be Unicode text, got the lone surrogate '\\ud800' at position ")


def test_prompt_that_is_not_unicode_is_400(toy: httpx.Client) -> None:
    for prompt, param in ((HALF, "prompt"), ([HALF], "prompt.0")):
        response = post(toy, {"model": "best-of-4", "prompt": prompt}, TEXT)
        assert (response.status_code, error_of(response)["param"]) == (400, param)


def test_unusual_unicode_is_answered(toy: httpx.Client) -> None:
    for text in ("\0", "a\0b", "\ufffe", "\U0010ffff", "\u202e", "\x1b[2J"):
        assert post(toy, chat_body(messages=[{"role": "user", "content": f"x{text}"}])).status_code == 200


HUGE = [-1e308, 0, 1e308, 2**63, 10**400, math.nan, math.inf, True, "x", [], {}]


@pytest.mark.parametrize("field", ["widening", "widening_power", "exploration", "n", "depth", "branching", "parallel"])
def test_extreme_search_settings_are_400_with_their_field(searching: httpx.Client, field: str) -> None:
    for value in HUGE:
        response = post(searching, chat_body(model="mcts-32", search={field: value}))
        if response.status_code != 200:
            assert response.status_code == 400, (value, response.text)
            assert error_of(response)["param"] == f"search.{field}"
        else:
            assert value == 0
            assert field in ("widening_power", "exploration")


NUMBERS = ["n", "seed", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "timeout"]


@pytest.mark.parametrize("field", [*NUMBERS, "budget.tokens", "budget.calls", "budget.forwards"])
def test_extreme_request_numbers_are_400_with_their_field(searching: httpx.Client, field: str) -> None:
    name, _, limit = field.partition(".")
    for value in HUGE:
        response = post(searching, chat_body(**{name: {limit: value} if limit else value}))
        if response.status_code != 200:
            assert response.status_code == 400, (value, response.text)
            assert error_of(response)["param"] == field
        else:
            assert (field, value) in (("seed", 0), ("temperature", 0), ("top_k", 0), ("top_k", -1), ("min_p", 0))


@pytest.mark.parametrize("temperature", [5e-324, 1e-6])
def test_temperature_that_overflows_the_sampler_is_400(toy: httpx.Client, temperature: float) -> None:
    error = error_of(post(toy, chat_body(temperature=temperature)))
    assert (error["param"], error["message"]) == (
        "temperature",
        f"temperature must be 0 or in [1e-05, 100.0], got {temperature}",
    )


def test_requests_of_one_search_are_limited_however_its_settings_multiply(searching: httpx.Client) -> None:
    catalog = load_presets(["speculation=off"], ["mcts-32"])
    preset = catalog.presets["mcts-32"]
    assert isinstance(preset.strategy, Mcts)
    assert preset.budget.calls == 65536
    error = error_of(post(searching, chat_body(model="mcts-32", budget={"calls": 65537})))
    assert error["message"] == "budget.calls=65537 is more than this server allows (65536)"


LIKELY = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.integers()
    | st.floats()
    | st.sampled_from([*HUGE, 1e-300, HALF, "", "best-of-4", "mcts-32", "user", "uct", "min", "best", "\0"])
    | st.text(max_size=4)
)
SEARCH_NAMES = sorted({field.name for strategy in search_classes().values() for field in fields(strategy)})
OTHER_NAMES = ["role", "content", "type", "text", "top_k", "min_p", "stop", "stop_token_ids", "tokens", "calls"]
NAMES = st.sampled_from([*SEARCH_NAMES, *OTHER_NAMES, HALF])
VALUES = st.recursive(
    LIKELY, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
FIELDS = sorted({*ChatCompletionRequest.model_fields, *TextCompletionRequest.model_fields})
SPECIAL = {
    "model": st.sampled_from(["mcts-32", "beam-16"]) | LIKELY,
    "search": st.dictionaries(st.sampled_from(SEARCH_NAMES), VALUES, max_size=2),
    "timeout": st.floats(0.01, 0.2) | LIKELY,
}
BODIES = st.lists(
    st.sampled_from([*FIELDS, "search"]).flatmap(lambda name: st.tuples(st.just(name), SPECIAL.get(name, VALUES))),
    min_size=1,
    max_size=3,
).map(dict)
QUIET = hypothesis_settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


@QUIET
@given(
    given_fields=BODIES, path=st.sampled_from([CHAT, TEXT]), model=st.sampled_from(["best-of-4", "mcts-32", "beam-16"])
)
def test_no_field_of_a_request_breaks_the_server(
    searching: httpx.Client, given_fields: dict[str, Any], path: str, model: str
) -> None:
    question = {"messages": [MESSAGE]} if path == CHAT else {"prompt": "1+1?"}
    response = post(searching, {"model": model} | question | given_fields, path)
    assert response.status_code in (200, 400, 404, 504), response.text
    if response.status_code != 200:
        error_of(response)
