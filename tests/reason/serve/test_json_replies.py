"""`response_format`: candidates vote by their JSON; where none is valid there is another search, at last an error."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.served_upstream import CHAT, ServedUpstream, stream_events, upstream_body
from tests.support.toy_server import SETTINGS, chat_body, error_of

SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "counted", "schema": SCHEMA, "strict": True}}


def text(content: str) -> dict[str, Any]:
    return {"content": content}


def test_equal_json_votes_together_and_invalid_json_does_not(upstream: ServedUpstream) -> None:
    replies = [
        text('{"count": "x"}'),
        text('{"count": 3}'),
        text("no"),
        text("no"),
        text('```json\n{"count":3.0}\n```'),
    ]
    upstream.script(*replies)
    reply = upstream.client.post(CHAT, json=upstream_body(5, response_format=FORMAT)).json()
    assert json.loads(reply["choices"][0]["message"]["content"]) == {"count": 3}
    assert reply["search"]["votes"] == {'{"count":3}': 2.0}
    assert reply["choices"][0]["answer"] == '{"count":3}'
    assert all(body["response_format"] == FORMAT for body in upstream.server.bodies)
    assert upstream.server.bodies[0]["messages"] == [{"role": "user", "content": "How many?"}]


def test_only_valid_candidates_are_choices(upstream: ServedUpstream) -> None:
    upstream.script(text("no"), text('{"count": 3}'), text('{"count": 4}'), text('{"count": 3}'))
    choices = upstream.client.post(CHAT, json=upstream_body(n=4, response_format=FORMAT) | {"n": 4}).json()["choices"]
    assert [json.loads(choice["message"]["content"])["count"] for choice in choices] == [3, 4, 3]


def test_a_search_without_valid_candidate_is_repeated(upstream: ServedUpstream) -> None:
    upstream.script(*[text("no")] * 4, text('{"count": 3}'))
    response = upstream.client.post(CHAT, json=upstream_body(4, response_format=FORMAT))
    assert response.status_code == 200
    assert len(upstream.server.bodies) == 8
    assert len({body["seed"] for body in upstream.server.bodies}) == 8
    assert response.json()["search"]["usage"]["calls"] == 8


def test_no_valid_candidate_is_an_error_that_names_the_field(upstream: ServedUpstream) -> None:
    upstream.script(text("no"))
    response = upstream.client.post(CHAT, json=upstream_body(4, response_format=FORMAT))
    assert response.status_code == 422
    error = error_of(response)
    assert (error["param"], error["code"]) == ("response_format", "no_valid_reply")
    assert response.headers["x-should-retry"] == "false"
    assert len(upstream.server.bodies) == 4 * SETTINGS["attempts"]


def test_the_budget_ends_the_attempts(upstream: ServedUpstream) -> None:
    upstream.script(text("no"))
    body = upstream_body(4, response_format=FORMAT, budget={"calls": 6})
    assert upstream.client.post(CHAT, json=body).status_code == 422
    assert len(upstream.server.bodies) == 6


def test_a_stream_has_the_json_in_parts_or_the_error_as_its_last_event(upstream: ServedUpstream) -> None:
    upstream.script(text('{"count": 3}'))
    events = stream_events(upstream.client, upstream_body(2, response_format=FORMAT))
    contents = [event["choices"][0]["delta"].get("content") for event in events]
    assert "".join(content for content in contents if content) == '{"count": 3}'
    upstream.script(text("no"))
    last = stream_events(upstream.client, upstream_body(2, response_format=FORMAT))[-1]
    assert last["error"]["code"] == "no_valid_reply"


def test_json_object_takes_any_object_and_nothing_else(upstream: ServedUpstream) -> None:
    upstream.script(text("[1]"), text('{"a": NaN}'), text('{"a": 1}'))
    reply = upstream.client.post(CHAT, json=upstream_body(4, response_format={"type": "json_object"})).json()
    assert reply["search"]["votes"] == {'{"a":1}': 2.0}
    assert upstream.server.bodies[0]["response_format"] == {"type": "json_object"}


def test_stop_strings_end_the_json(upstream: ServedUpstream) -> None:
    upstream.script(text('{"count": 3}###'))
    reply = upstream.client.post(CHAT, json=upstream_body(2, response_format=FORMAT, stop=["###"])).json()
    assert reply["choices"][0]["message"]["content"] == '{"count": 3}'


def test_a_model_that_cannot_write_json_is_a_clear_error(toy: httpx.Client) -> None:
    error = error_of(toy.post(CHAT, json=chat_body(response_format={"type": "json_object"})))
    assert (error["param"], error["code"]) == ("response_format", "no_valid_reply")


def test_text_format_changes_nothing(toy: httpx.Client) -> None:
    plain, formatted = (
        toy.post(CHAT, json=chat_body(**more)).json() for more in ({}, {"response_format": {"type": "text"}})
    )
    assert formatted["choices"] == plain["choices"]


DEEP: dict[str, Any] = {}
for _ in range(100):
    DEEP = {"not": DEEP}


@pytest.mark.parametrize(
    ("response_format", "param"),
    [
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_object", "json_schema": FORMAT["json_schema"]}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": []}}, "response_format.json_schema.schema"),
        ("json", "response_format"),
    ],
)
def test_wrong_format_is_refused_by_name(toy: httpx.Client, response_format: Any, param: str) -> None:
    response = toy.post(CHAT, json=chat_body(response_format=response_format))
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "objct"}, ".type"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}}, ".properties.a.$ref"),
        ({"$ref": "#/$defs/a"}, ".$ref"),
        ({"patternProperties": {"(a+)+$": {}}}, ".patternProperties"),
        ({"pattern": "("}, ".pattern"),
        (DEEP, ".not" * 3),
    ],
)
def test_hostile_schema_is_refused_with_its_place(toy: httpx.Client, schema: dict[str, Any], place: str) -> None:
    hostile = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    response = toy.post(CHAT, json=chat_body(response_format=hostile))
    assert response.status_code == 400
    assert error_of(response)["param"].startswith(f"response_format.json_schema.schema{place}")


def test_nan_in_a_schema_is_refused(toy: httpx.Client) -> None:
    body = json.dumps(
        chat_body(response_format={**FORMAT, "json_schema": {"name": "x", "schema": {"const": float("nan")}}})
    )
    response = toy.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "const" in error_of(response)["param"]
