"""Reads the tool calls in what a model wrote, and checks them against the tools that were offered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reason.engines.openai_api.response import TOOL_CALL_TAGS
from reason.serve.json_schema import JsonSchema, parse_json, write_canonical

_OPENING, _CLOSING = TOOL_CALL_TAGS


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool with a value for its parameters."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True)
class CallingText:
    """What a model wrote: calls, and the text around them."""

    text: str
    calls: tuple[ToolCall, ...] = ()


def read_calls(written: str, tool_format: str) -> CallingText:
    """Reads calls in one of `reason.prompt.TOOL_FORMATS`. Raises: ValueError for a call that is broken off or no JSON.

    >>> read_calls('Wait. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "hermes")
    CallingText(text='Wait.', calls=(ToolCall(name='add', arguments={'a': 1}),))
    >>> read_calls('{"name": "add", "parameters": {"a": 1}}', "llama").calls
    (ToolCall(name='add', arguments={'a': 1}),)
    >>> read_calls('{"a": 1}', "llama"), read_calls("It is 3.", "hermes")
    (CallingText(text='{"a": 1}', calls=()), CallingText(text='It is 3.', calls=()))
    """
    return _read_tagged(written) if tool_format == "hermes" else _read_bare(written)


def _read_tagged(written: str) -> CallingText:
    """Reads `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, and what servers send apart."""
    text, *parts = written.split(_OPENING)
    calls = []
    for part in parts:
        # the JSON itself says where it ends: a text in it may hold the closing tag
        inside = part.lstrip()
        try:
            _, end = json.JSONDecoder().raw_decode(inside)
        except RecursionError:
            raise ValueError("the call is nested too deeply") from None
        rest = inside[end:].lstrip()
        if not rest.startswith(_CLOSING):
            raise ValueError("the call is broken off")
        calls.append(_make_call(parse_json(inside[:end]), "arguments"))
        text += rest.removeprefix(_CLOSING)
    return CallingText(text.strip(), tuple(calls))


def _read_bare(written: str) -> CallingText:
    """Reads `{"name": ..., "parameters": {...}}`, several with semicolons between: Llama."""
    text = written.strip().removeprefix("<|python_tag|>").strip()
    calls, rest = [], text
    while rest.startswith("{"):
        try:
            _, end = json.JSONDecoder().raw_decode(rest)
            value = parse_json(rest[:end])
        except (ValueError, RecursionError):
            break
        if not isinstance(value, dict) or "name" not in value:
            break
        calls.append(_make_call(value, "parameters" if "parameters" in value else "arguments"))
        rest = rest[end:].lstrip("; \n")
    return CallingText(rest, tuple(calls)) if calls else CallingText(text)


def _make_call(value: object, key: str) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("a call has a name")
    arguments = value.get(key, {})
    if isinstance(arguments, str):  # some models write the JSON into a text, as the API has it
        arguments = parse_json(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a call are an object")
    return ToolCall(value["name"], arguments)


@dataclass(frozen=True)
class ToolSet:
    """The tools of a request.

    schemas        of the parameters, by the names of the tools
    tool_format    how the model writes calls
    must_call      whether a text is no reply
    only           the tool that must be called; None: any
    several        whether one reply may have several calls
    """

    schemas: Mapping[str, JsonSchema]
    tool_format: str
    must_call: bool = False
    only: str | None = None
    several: bool = True

    def accepts(self, calls: Sequence[ToolCall]) -> bool:
        """Returns whether these calls, perhaps none, are allowed and their arguments match the schemas."""
        if not calls:
            return not self.must_call
        if len(calls) > 1 and not self.several:
            return False
        return all(
            self.only in (None, call.name)
            and (schema := self.schemas.get(call.name)) is not None
            and schema.accepts(call.arguments)
            for call in calls
        )


def canonical_calls(calls: Sequence[ToolCall]) -> str:
    """Returns the text that votes compare: the same calls in any order have the same.

    >>> canonical_calls([ToolCall("b", {"y": 2.0, "x": 1}), ToolCall("a", {})])
    '[{"arguments":{"x":1,"y":2},"name":"b"},{"arguments":{},"name":"a"}]'
    """
    texts = sorted(write_canonical({"name": call.name, "arguments": call.arguments}) for call in calls)
    return f"[{','.join(texts)}]"
