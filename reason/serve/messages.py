"""Schemas of a conversation: messages, the tools offered in it, and the form that the reply is to have."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from decoding.validation import shorten
from reason.serve.strict_model import StrictModel, unsupported

MAX_TOOLS = 128

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class CalledFunction(StrictModel):
    """The function of a tool call; `arguments` is JSON in a text."""

    name: ToolName
    arguments: str


class CalledTool(StrictModel):
    """A tool call in the message of an assistant. `index` is what a client keeps that put streamed parts together."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class FunctionDescription(StrictModel):
    """A function that the model may call; `parameters` is a JSON schema of an object."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class FunctionTool(StrictModel):
    """A tool of a request."""

    type: Literal["function"]
    function: FunctionDescription


class FunctionName(StrictModel):
    """The name of a tool."""

    name: ToolName


class NamedTool(StrictModel):
    """The tool that must be called."""

    type: Literal["function"]
    function: FunctionName


def check_tool_choice(choice: object) -> object:
    """Returns the choice. Raises: PydanticCustomError for one that is none."""
    if isinstance(choice, str) and choice in ("none", "auto", "required"):
        return choice
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        return choice
    form = '{"type": "function", "function": {"name": ...}}'
    raise unsupported(f"tool_choice must be none, auto, required or {form}, got {shorten(choice)}")


class SchemaOfReply(StrictModel):
    """A JSON schema with its name. Replies are checked against it whether it is `strict` or not."""

    name: ToolName
    description: str | None = None
    schema_: Annotated[dict[str, object], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """The form of the reply's text: any, a JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaOfReply | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise unsupported("type json_schema needs a json_schema", field="response_format.json_schema")
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise unsupported("json_schema goes with type json_schema", field="response_format.json_schema")
        return self


def _join_parts(content: object) -> object:
    """Joins a text given in parts. Raises: PydanticCustomError for a message or a part without text."""
    if content is None:
        raise unsupported("a message must have text, unless it is an assistant's with tool calls")
    if not isinstance(content, list):
        return content
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else part
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise unsupported(f"a message may have parts of type text only, got {kind!r}")
    return "".join(part["text"] for part in content)


class ChatMessage(StrictModel):
    """One message of a conversation.

    `tool_calls` are what an assistant called, and a message of the role `tool` has the result of one of them. The other
    fields may be present and null or empty, as in a message that a client received and sends back;
    `reasoning_content` is progress and thought that the server has sent, and no part of the conversation. The content
    of an answer that has only that, or only tool calls, may be null.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_join_parts)]
    tool_calls: Annotated[list[CalledTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    name: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[object], Field(max_length=0)] | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_answer(cls, data: object) -> object:
        if not isinstance(data, dict) or data.get("role") != "assistant":
            return data
        if data.get("content", "") is not None or not (data.get("reasoning_content") or data.get("tool_calls")):
            return data if "content" in data or not data.get("tool_calls") else {**data, "content": ""}
        return {**data, "content": ""}

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise unsupported(f"tool_calls are an assistant's, not of the role {self.role}")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise unsupported("tool_call_id goes with the role tool, and that role with it")
        return self


def check_tool_results(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Returns the messages. Raises: PydanticCustomError for the result of a call that none of them makes."""
    called: set[str] = set()
    for i, message in enumerate(messages):
        called |= {call.id for call in message.tool_calls or ()}
        if message.role == "tool" and message.tool_call_id not in called:
            field = f"messages.{i}.tool_call_id"
            raise unsupported(f"{field} is the id of no tool call before it", field=field)
    return messages
