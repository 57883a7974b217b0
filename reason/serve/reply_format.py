"""The form that the replies to one request must have: JSON, tool calls, or both; other candidates have no vote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from reason.prompt import Prompt
from reason.serve.choices import cut_at_stop
from reason.serve.errors import ApiError
from reason.serve.json_schema import InvalidSchema, JsonSchema, parse_json, strip_fence, write_canonical
from reason.serve.messages import FunctionTool, NamedTool, ResponseFormat
from reason.serve.schemas import ChatCompletionRequest
from reason.serve.tool_calls import CallingText, ToolSet, canonical_calls, read_calls

ANSWER_IN_WORDS = "in words"
"""What a text without a recognizable answer votes for, where tools are offered: that no tool is called."""

_NO_TOOLS = (
    "tools is not supported: this server's model calls none: {reason}. Choose a model whose chat template takes tools "
    "and say how it writes calls (model.prompt.tool_calls), or engine=openai with a server that calls tools"
)


@dataclass(frozen=True)
class ReplyFormat:
    """Reads candidates of one request.

    json_schema     what a text must match as JSON; None: any text is a reply
    tools           the tools that may be called; None: none
    stop            stop strings, at which a text ends
    request_fields  the same as fields of a request, for a server that renders the conversation
    template_fields  the same as arguments of the chat template that is here
    instruction     what the model is told where nothing else tells it; "" for nothing
    """

    json_schema: JsonSchema | None = None
    tools: ToolSet | None = None
    stop: Sequence[str] = ()
    request_fields: Mapping[str, object] = field(default_factory=dict)
    template_fields: Mapping[str, object] = field(default_factory=dict)
    instruction: str = ""

    @property
    def param(self) -> str:
        """The field of the request that a candidate without a vote does not match."""
        return "tools" if self.json_schema is None else "response_format"

    def read_answer(self, written: str, find_answer: Callable[[str], str | None]) -> str | None:
        """Returns what votes count: canonical JSON, or canonical calls, or the answer of a text; None if invalid."""
        reply = self._read_valid(written)
        if reply is None:
            return None
        if reply.calls:
            return canonical_calls(reply.calls)
        if self.json_schema is not None:
            return write_canonical(parse_json(strip_fence(reply.text)))
        return find_answer(reply.text) or ANSWER_IN_WORDS

    def read_reply(self, written: str) -> CallingText:
        """Returns text and calls of a valid candidate, the text without a fence around its JSON."""
        reply = self._read_valid(written) or CallingText(cut_at_stop(written, self.stop))
        is_json = self.json_schema is not None and not reply.calls
        return CallingText(strip_fence(reply.text)) if is_json else reply

    def _read_valid(self, written: str) -> CallingText | None:
        text = cut_at_stop(written, self.stop)
        try:
            reply = CallingText(text) if self.tools is None else read_calls(text, self.tools.tool_format)
            if self.tools is not None and not self.tools.accepts(reply.calls):
                return None
            if reply.calls:
                return reply
            if self.json_schema is not None:
                return reply if self.json_schema.accepts(parse_json(strip_fence(reply.text))) else None
        except ValueError:
            return None
        return reply if reply.text.strip() else None


def read_format(body: ChatCompletionRequest, prompt: Prompt) -> ReplyFormat | None:
    """Returns the form that a request asks for; None for any text. Slow for large schemas. Raises: ApiError 400."""
    schema = _read_schema(body.response_format)
    tools = _read_tools(body, prompt)
    if schema is None and tools is None:
        return None
    described = [tool.model_dump(exclude_none=True) for tool in body.tools]
    instruction, request_fields = "", dict[str, object]()
    if tools is not None:
        choice = body.tool_choice
        request_fields |= {
            "tools": described,
            "tool_choice": choice.model_dump() if isinstance(choice, NamedTool) else choice,
            **({} if body.parallel_tool_calls else {"parallel_tool_calls": False}),
        }
        if tools.only is not None:
            instruction = f"Call the tool {tools.only}."
        elif tools.must_call:
            instruction = "Call one of the tools."
    if schema is not None and body.response_format is not None:
        request_fields["response_format"] = body.response_format.model_dump(by_alias=True, exclude_none=True)
        kind = "a JSON object" if body.response_format.json_schema is None else f"JSON for this schema:\n{schema.text}"
        instruction = f"{instruction}\n\nWrite the answer as {kind}\nWrite nothing but this JSON.".strip()
    return ReplyFormat(
        json_schema=schema,
        tools=tools,
        stop=tuple(body.stop or ()),
        request_fields=request_fields,
        template_fields={"tools": described} if tools is not None else {},
        instruction=instruction,
    )


def _read_schema(response_format: ResponseFormat | None) -> JsonSchema | None:
    if response_format is None or response_format.type == "text":
        return None
    given = response_format.json_schema
    return _compile("response_format.json_schema.schema", {"type": "object"} if given is None else given.schema_)


def _read_tools(body: ChatCompletionRequest, prompt: Prompt) -> ToolSet | None:
    choice = body.tool_choice
    only = choice.function.name if isinstance(choice, NamedTool) else None
    must_call = only is not None or choice == "required"
    if not body.tools:
        if must_call:
            raise _invalid("tool_choice", "tool_choice asks for a tool, and tools has none")
        return None
    schemas: dict[str, JsonSchema] = {}
    for i, tool in enumerate(body.tools):
        name = tool.function.name
        if name in schemas:
            raise _invalid(f"tools.{i}.function.name", f"two tools have the name {name!r}")
        schemas[name] = _compile(f"tools.{i}.function.parameters", _parameters(tool))
    if only is not None and only not in schemas:
        raise _invalid("tool_choice", f"tool_choice names {only!r}, and tools has {', '.join(schemas)}")
    if choice == "none":  # they are not shown to the model either
        return None
    return ToolSet(schemas, _find_tool_format(prompt), must_call, only, body.parallel_tool_calls)


def _parameters(tool: FunctionTool) -> dict[str, object]:
    return tool.function.parameters or {"type": "object"}


def _find_tool_format(prompt: Prompt) -> str:
    """Returns how the model writes calls. Raises: ApiError 400 with the reason why it writes none."""
    if prompt.is_rendered_by_server:
        return "hermes"  # the form in which the engine returns what a server sends apart
    if prompt.format.raw is not None:
        reason = "it has no chat template"
    elif not prompt.offers_tools:
        reason = "its chat template shows it no tools"
    elif prompt.format.tool_calls is None:
        reason = "model.prompt.tool_calls is null"
    else:
        return prompt.format.tool_calls
    raise ApiError(400, _NO_TOOLS.format(reason=reason), param="tools", code="unsupported_field")


def _compile(param: str, schema: object) -> JsonSchema:
    try:
        return JsonSchema(schema)
    except InvalidSchema as error:
        param = f"{param}.{error.path}" if error.path else param
        raise _invalid(param[:200], f"{param[:200]}: {error}") from None


def _invalid(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
