"""The body of `/v1/responses`, and its conversion to the conversation that `/v1/chat/completions` has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field, ValidationError

from decoding.validation import shorten
from reason.serve.errors import ApiError, validation_error
from reason.serve.messages import MAX_TOOLS, ToolName
from reason.serve.schemas import ChatCompletionRequest, CompletionRequest, PositiveInt, ReasoningEffort
from reason.serve.strict_model import StrictModel, unsupported

MAX_ITEMS = 10_000

_SAME_FIELDS = ("model", "seed", "temperature", "top_p", "top_k", "min_p", "timeout", "stream", "search", "budget")
_PARAMS = (
    (r"^messages.*", "input"),
    (r"^max_tokens$", "max_output_tokens"),
    (r"^logprobs$", "include"),
    (r"^reasoning_effort$", "reasoning.effort"),
    (r"^tools\.(\d+)\.function", r"tools.\1"),
    (r"^tool_choice\.function", "tool_choice"),
    (r"^response_format\.json_schema", "text.format"),
    (r"^response_format", "text.format"),
)
"""What fields of a chat are called in this API."""


class ItemTool(StrictModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class TextFormat(StrictModel):
    """The form of the text; `name`, `schema` and `strict` go with json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: ToolName | None = None
    description: str | None = None
    schema_: Annotated[dict[str, object] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextSettings(StrictModel):
    """Settings of the text."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningSettings(StrictModel):
    """Settings of the search and of what is told about it: thoughts are always in the output, no summaries of them."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


def _check_input(given: object) -> object:
    """Returns the input. Raises: PydanticCustomError for what is none."""
    is_list = isinstance(given, list) and all(isinstance(item, dict) for item in given)
    if isinstance(given, str) or (is_list and 0 < len(cast("list[object]", given)) <= MAX_ITEMS):
        return given
    raise unsupported(f"input must be a text or a list of items, at most {MAX_ITEMS:,}, got {shorten(given)}")


class ResponsesRequest(CompletionRequest):
    """`/v1/responses`. `store` is accepted whatever it is: no reply is stored, only the search's tree for a while."""

    n: Literal[1] = 1
    stop: None = None
    max_tokens: None = None
    reasoning_effort: None = None
    input: Annotated[str | list[dict[str, object]], BeforeValidator(_check_input)]
    instructions: str | None = None
    max_output_tokens: PositiveInt | None = None
    tools: Annotated[list[ItemTool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: object = "auto"
    parallel_tool_calls: bool = True
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] = Field(default_factory=list)
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    store: bool | None = None


def to_chat(body: ResponsesRequest) -> ChatCompletionRequest:
    """Returns the same request as a chat. Raises: ApiError 400 that names the field as this API does."""
    choice = body.tool_choice
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    text_format = body.text.format if body.text is not None else None
    chat = {
        **{name: getattr(body, name) for name in _SAME_FIELDS},
        "budget": body.budget.model_dump(),
        "messages": _to_messages(body),
        "max_tokens": body.max_output_tokens,
        "tools": [
            {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
            for tool in body.tools
        ],
        "tool_choice": choice,
        "parallel_tool_calls": body.parallel_tool_calls,
        "logprobs": "message.output_text.logprobs" in body.include,
        "top_logprobs": body.top_logprobs,
        "response_format": None if text_format is None else _to_response_format(text_format),
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
    }
    try:
        return ChatCompletionRequest.model_validate(chat)
    except ValidationError as error:
        raise name_as_here(validation_error(cast(Mapping[str, object], error.errors()[0]))) from None


def name_as_here(error: ApiError) -> ApiError:
    """Returns an error about a chat with the field's name in this API.

    >>> error = name_as_here(ApiError(400, "tools.0.function.name: no", param="tools.0.function.name"))
    >>> error.param, error.message
    ('tools.0.name', 'tools.0.name: no')
    """
    if error.param is None:
        return error
    param = error.param
    for pattern, name in _PARAMS:
        param, count = re.subn(pattern, name, param)
        if count:
            break
    message = error.message.replace(error.param, param)
    return ApiError(error.status, message, param=param, code=error.code, headers=error.headers)


def _to_response_format(text_format: TextFormat) -> dict[str, object]:
    if text_format.type != "json_schema":
        return {"type": text_format.type}
    fields = text_format.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"type": "json_schema", "json_schema": fields}


def _to_messages(body: ResponsesRequest) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for i, item in enumerate(body.input):
        _add_item(messages, item, f"input.{i}")
    return messages


def _add_item(messages: list[dict[str, object]], item: Mapping[str, object], place: str) -> None:
    """Adds what an item says to the conversation. *Mutates* it. Raises: ApiError 400."""
    kind = item.get("type", "message")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        last = messages[-1] if messages else {}
        if last.get("role") == "assistant":  # an assistant's text and calls are one message
            messages[-1] = {**last, "tool_calls": [*cast(list[object], last.get("tool_calls", [])), call]}
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
    elif kind != "reasoning":  # a thought is no part of the conversation
        raise ApiError(
            400,
            f"{place}.type: this server reads items of the types message, function_call, function_call_output and "
            f"reasoning, got {shorten(kind)}",
            param=f"{place}.type",
            code="unsupported_field",
        )
