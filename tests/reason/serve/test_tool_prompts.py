"""What a model whose chat template is here gets to see of tools and schemas, and how its calls are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason.prompt import Prompt, PromptFormat
from reason.serve.errors import ApiError
from reason.serve.question import problem_from_messages
from reason.serve.reply_format import read_format
from reason.serve.schemas import ChatCompletionRequest
from reason.serve.tool_calls import ToolCall, canonical_calls, read_calls
from tests.support.fakes import WordTokenizer
from tests.support.served_upstream import tool


class ToolTokenizer(WordTokenizer):
    chat_template: str | None = "{% for tool in tools %}{{ tool }}{% endfor %}"

    def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: object) -> str:
        self.conversation = conversation
        return super().apply_chat_template(conversation, **kwargs)


def chat(**fields: Any) -> ChatCompletionRequest:
    messages = [{"role": "user", "content": "1 + 2?"}]
    return ChatCompletionRequest.model_validate({"model": "m", "messages": messages, "tools": [tool("add")]} | fields)


def shown(body: ChatCompletionRequest, tool_calls: str | None = "hermes") -> ToolTokenizer:
    """What the template of a model gets for a request."""
    tokenizer = ToolTokenizer()
    prompt = Prompt(PromptFormat(user="{question} In a box.", tool_calls=tool_calls), tokenizer)
    problem_from_messages(body.messages, prompt, read_format(body, prompt))
    return tokenizer


def test_template_gets_the_tools_and_the_bare_question() -> None:
    tokenizer = shown(chat())
    assert tokenizer.templated["tools"] == [tool("add")]
    assert tokenizer.conversation == [{"role": "user", "content": "1 + 2?"}]


def test_template_gets_calls_as_objects_and_results_as_messages() -> None:
    call: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]
    _, calling, result = shown(chat(messages=messages)).conversation
    assert calling["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert (result["role"], result["content"]) == ("tool", "3")
    call["function"]["arguments"] = "{"
    with pytest.raises(ApiError, match="no JSON"):
        shown(chat(messages=messages))


def test_model_is_told_the_schema_and_the_required_tool() -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    body = chat(
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}, tool_choice="required"
    )
    system = shown(body).conversation[0]
    assert system["role"] == "system"
    assert json.dumps(schema, separators=(",", ":")) in system["content"]
    assert "Call one of the tools." in system["content"]


def test_model_without_a_way_to_call_is_refused_with_the_setting() -> None:
    with pytest.raises(ApiError, match=r"model\.prompt\.tool_calls is null") as error:
        shown(chat(), tool_calls=None)
    assert error.value.param == "tools"
    with pytest.raises(ApiError, match="shows it no tools"):
        read_format(chat(), Prompt(PromptFormat(tool_calls="llama"), WordTokenizer()))
    with pytest.raises(ValueError, match=r"model\.prompt\.tool_calls must be one of hermes, llama or null, got 'xml'"):
        PromptFormat(tool_calls="xml")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
CALLS = st.lists(
    st.builds(ToolCall, st.text("abc_", min_size=1), st.dictionaries(st.text(), JSON, max_size=3)),
    min_size=1,
    max_size=3,
)


@given(CALLS)
def test_calls_are_read_as_they_were_written(calls: list[ToolCall]) -> None:
    tagged = "".join(
        f"\n<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>" for call in calls
    )
    assert read_calls(f"Well.{tagged}", "hermes").calls == tuple(calls)
    assert read_calls(f"Well.{tagged}", "hermes").text.startswith("Well.")
    bare = "; ".join(json.dumps({"name": call.name, "parameters": call.arguments}) for call in calls)
    assert read_calls(bare, "llama").calls == tuple(calls)


@given(CALLS)
def test_canonical_calls_do_not_depend_on_order(calls: list[ToolCall]) -> None:
    assert canonical_calls(calls) == canonical_calls(calls[::-1])


@given(st.text())
def test_any_text_is_read_or_refused(written: str) -> None:
    for tool_format in ("hermes", "llama"):
        for text in (written, f"<tool_call>{written}", f'{{"name": "f", "parameters": {written}}}'):
            try:
                read_calls(text, tool_format)
            except ValueError:
                assert "<tool_call>" in text or text.startswith("{")
