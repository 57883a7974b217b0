"""`/v1/responses`: items in, items out, typed events in order; what it cannot do is refused under this API's names."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import httpx
import pytest

from tests.support.served_upstream import CHAT, ServedUpstream, called, stream_events
from tests.support.toy_server import QUESTION, chat_body, error_of

PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "add",
    "strict": True,
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}


def item_body(**fields: Any) -> dict[str, Any]:
    return {"model": "majority-16", "input": "How many?", "search": {"n": 2}} | fields


def toy_body(**fields: Any) -> dict[str, Any]:
    return {"model": "best-of-4", "input": QUESTION} | fields


def test_text_is_the_answer_of_the_same_chat(toy: httpx.Client) -> None:
    reply = toy.post(PATH, json=toy_body()).json()
    chat = toy.post(CHAT, json=chat_body()).json()
    (item,) = reply["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert [part["text"] for part in item["content"]] == [chat["choices"][0]["message"]["content"]]
    assert (reply["object"], reply["status"], reply["error"]) == ("response", "completed", None)
    assert reply["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
    assert reply["search"]["answer"] == chat["search"]["answer"]


def test_instructions_and_items_are_a_conversation(upstream: ServedUpstream) -> None:
    upstream.script({"content": "3"})
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "1 + 2?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "add",
            "arguments": '{"a": 1}',
            "status": "completed",
        },
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": '{"a": 2}'},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
    ]
    response = upstream.client.post(PATH, json=item_body(input=items, instructions="Be brief.", tools=[TOOL]))
    assert response.status_code == 200, response.text
    sent = upstream.server.bodies[0]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool"]
    assert [call["id"] for call in sent[2]["tool_calls"]] == ["c1", "c2"]
    assert [message["content"] for message in sent] == ["Be brief.", "1 + 2?", "I add.", "1", "2"]


def test_tool_calls_are_items(upstream: ServedUpstream) -> None:
    upstream.script(called("add", '{"a": 1}'))
    reply = upstream.client.post(
        PATH, json=item_body(tools=[TOOL], tool_choice={"type": "function", "name": "add"})
    ).json()
    (item,) = reply["output"]
    assert (item["type"], item["name"], json.loads(item["arguments"])) == ("function_call", "add", {"a": 1})
    assert upstream.server.bodies[0]["tools"][0]["function"]["name"] == "add"
    assert upstream.server.bodies[0]["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    following = [
        {"role": "user", "content": "?"},
        item,
        {"type": "function_call_output", "call_id": item["call_id"], "output": "1"},
    ]
    assert upstream.client.post(PATH, json=item_body(tools=[TOOL], input=following)).status_code == 200


def test_text_format_is_a_schema(upstream: ServedUpstream) -> None:
    upstream.script({"content": '{"a": "x"}'}, {"content": '{"a": 1}'})
    text = {"format": {"type": "json_schema", "name": "one", "schema": TOOL["parameters"], "strict": True}}
    reply = upstream.client.post(PATH, json=item_body(text=text)).json()
    assert reply["output"][0]["content"][0]["text"] == '{"a": 1}'


def test_stream_announces_text_and_ends_with_the_whole_reply(toy: httpx.Client) -> None:
    events = stream_events(toy, toy_body(), PATH)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if "delta" in event]
    assert len(deltas) > 1
    assert [kind for kind, _ in groupby(kinds)] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    whole = toy.post(PATH, json=toy_body()).json()
    assert events[-1]["response"]["output"][0]["content"] == whole["output"][0]["content"]
    assert "".join(deltas) == whole["output"][0]["content"][0]["text"]
    assert events[-1]["response"]["usage"] == whole["usage"]


def test_stream_announces_calls(upstream: ServedUpstream) -> None:
    upstream.script(called("add", '{"a": 1}'))
    events = stream_events(upstream.client, item_body(tools=[TOOL]), PATH)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:5] == ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
    assert events[3]["delta"] == events[-1]["response"]["output"][0]["arguments"] == '{"a":1}'


def test_stream_ends_with_an_error_event(upstream: ServedUpstream) -> None:
    upstream.script({"content": "no"})
    event = stream_events(upstream.client, item_body(text={"format": {"type": "json_object"}}), PATH)[-1]
    assert (event["type"], event["code"], event["error"]["code"]) == ("error", "no_valid_reply", "no_valid_reply")


def test_cut_text_is_incomplete(toy: httpx.Client) -> None:
    reply = toy.post(PATH, json=toy_body(max_output_tokens=3)).json()
    assert (reply["status"], reply["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_effort_is_a_search(toy: httpx.Client) -> None:
    reply = toy.post(PATH, json=toy_body(reasoning={"effort": "minimal"})).json()
    assert reply["search"]["preset"] == "single"


@pytest.mark.parametrize("store", [True, False, None])
def test_store_changes_nothing(toy: httpx.Client, store: bool | None) -> None:
    reply = toy.post(PATH, json=toy_body(store=store)).json()
    assert reply["store"] is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [{**TOOL, "parameters": {"type": "x"}}]}, "tools.0.parameters.type"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "x"}}}},
            "text.format.schema.type",
        ),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"include": ["file_search_call.results"]}, "include.0"),
        ({"n": 2}, "n"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_wrong_field_is_refused_by_its_name_here(toy: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = toy.post(PATH, json=toy_body(**fields))
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param
