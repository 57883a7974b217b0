"""`tools`: candidates vote by the tools that they call, checked against the schemas; text is another candidate."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.served_upstream import CHAT, ServedUpstream, called, stream_events, tool, upstream_body
from tests.support.toy_server import chat_body, error_of

ADD = tool("add", a={"type": "integer"}, b={"type": "integer"})
SHOW = tool("show", text={"type": "string"})
CALL = called("add", '{"a": 1, "b": 2}')


def ask(upstream: ServedUpstream, n: int = 4, **fields: Any) -> httpx.Response:
    return upstream.client.post(CHAT, json=upstream_body(n, tools=[ADD, SHOW], **fields))


def test_equal_calls_vote_together_whatever_their_spelling(upstream: ServedUpstream) -> None:
    upstream.script(called("show", '{"text": "x"}'), CALL, called("add", '{"b":2.0,"a":1}'), {"content": "Hm."})
    reply = ask(upstream).json()
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "add")
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
    assert sorted(reply["search"]["votes"].values()) == [1.0, 1.0, 2.0]
    sent = upstream.server.bodies[0]
    assert ([each["function"]["name"] for each in sent["tools"]], sent["tool_choice"]) == (["add", "show"], "auto")
    assert sent["messages"] == [{"role": "user", "content": "How many?"}]


@pytest.mark.parametrize(
    "invalid",
    [
        called("add", '{"a": 1}'),
        called("add", '{"a": 1, "b": "2"}'),
        called("add", '{"a": 1, "b": 2'),
        called("add", "[1, 2]"),
        called("subtract", '{"a": 1, "b": 2}'),
        {"content": '<tool_call>{"name": "add", "arguments": {"a": 1'},
        {"content": ""},
    ],
)
def test_invalid_calls_have_no_vote(upstream: ServedUpstream, invalid: dict[str, Any]) -> None:
    upstream.script(invalid, invalid, invalid, CALL)
    reply = ask(upstream).json()
    assert list(reply["search"]["votes"].values()) == [1.0]
    assert reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"
    upstream.script(invalid)
    response = ask(upstream, 1)
    assert response.status_code == 422
    assert (error_of(response)["param"], error_of(response)["code"]) == ("tools", "no_valid_reply")


def test_texts_without_an_answer_vote_together_against_calls(upstream: ServedUpstream) -> None:
    upstream.script({"content": "Which sum?"}, {"content": "What do you add?"}, CALL)
    reply = ask(upstream, 3).json()
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] in ("Which sum?", "What do you add?")
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_required_call_leaves_texts_without_vote(upstream: ServedUpstream, choice: Any) -> None:
    upstream.script({"content": "3"}, {"content": "3"}, CALL)
    reply = ask(upstream, 3, tool_choice=choice).json()
    assert reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"
    assert upstream.server.bodies[0]["tool_choice"] == choice


def test_a_named_tool_leaves_other_calls_without_vote(upstream: ServedUpstream) -> None:
    upstream.script(CALL)
    response = ask(upstream, 1, tool_choice={"type": "function", "function": {"name": "show"}})
    assert response.status_code == 422


def test_tool_choice_none_shows_no_tools(upstream: ServedUpstream) -> None:
    upstream.script({"content": "3"})
    assert ask(upstream, 1, tool_choice="none").json()["choices"][0]["message"]["content"] == "3"
    assert "tools" not in upstream.server.bodies[0]


@pytest.mark.parametrize(("allowed", "status"), [(True, 200), (False, 422)])
def test_several_calls_in_one_reply_are_allowed_unless_refused(
    upstream: ServedUpstream, allowed: bool, status: int
) -> None:
    both = {
        "tool_calls": [
            *called("add", '{"a": 1, "b": 2}')["tool_calls"],
            *called("show", '{"text": "</tool_call>"}')["tool_calls"],
        ]
    }
    upstream.script(both)
    response = ask(upstream, 2, parallel_tool_calls=allowed)
    assert response.status_code == status
    assert upstream.server.bodies[0].get("parallel_tool_calls", True) is allowed
    if allowed:
        calls = response.json()["choices"][0]["message"]["tool_calls"]
        assert [call["function"]["name"] for call in calls] == ["add", "show"]
        assert json.loads(calls[1]["function"]["arguments"]) == {"text": "</tool_call>"}
        assert len({call["id"] for call in calls}) == 2


def test_stream_has_the_calls_as_one_delta_at_the_end(upstream: ServedUpstream) -> None:
    upstream.script(CALL)
    events = stream_events(upstream.client, upstream_body(2, tools=[ADD]))
    deltas = [event["choices"][0]["delta"] for event in events]
    (calls,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert [(call["index"], call["function"]["name"]) for call in calls] == [(0, "add")]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_results_of_tools_reach_the_model(upstream: ServedUpstream) -> None:
    upstream.script({"content": "It is 3."})
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    conversation = [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    reply = ask(upstream, 1, messages=conversation).json()
    assert reply["choices"][0]["message"]["content"] == "It is 3."
    sent = upstream.server.bodies[0]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert sent[1]["tool_calls"] == [call]
    assert sent[2] == {"role": "tool", "content": "3", "tool_call_id": "c1"}


def test_json_and_tools_go_together(upstream: ServedUpstream) -> None:
    upstream.script({"content": '{"sum": 3}'}, {"content": "3"}, {"content": '{"sum": 3}'}, CALL)
    reply = ask(upstream, 4, response_format={"type": "json_object"}).json()
    assert reply["choices"][0]["message"]["content"] == '{"sum": 3}'
    assert sorted(reply["search"]["votes"].values()) == [1.0, 2.0]


def test_bundled_models_refuse_tools_early(toy: httpx.Client) -> None:
    error = error_of(toy.post(CHAT, json=chat_body(tools=[ADD])))
    assert (error["param"], error["code"]) == ("tools", "unsupported_field")
    assert "no chat template" in error["message"]


CALLING = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
        ({"tools": [ADD, ADD]}, "tools.1.function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}]},
            "tools.0.function.parameters.type",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "file:///etc/passwd"}}}]},
            "tools.0.function.parameters.$ref",
        ),
        ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools"),
        ({"tools": [ADD], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [ADD], "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"messages": [{"role": "tool", "tool_call_id": "c1", "content": "3"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALLING]}]}, "messages.0"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{**CALLING, "type": "x"}]}]},
            "messages.0.tool_calls.0.type",
        ),
        ({"search": {"keep": 0.5}, "tools": [ADD]}, "search.select"),
    ],
)
def test_wrong_tools_are_refused_by_name(upstream: ServedUpstream, fields: dict[str, Any], param: str) -> None:
    response = upstream.client.post(CHAT, json=upstream_body(2) | fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
