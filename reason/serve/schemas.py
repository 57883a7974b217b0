"""What a request may say, field by field; unknown fields are errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from reason.serve.unsupported_fields import without_refused

Count = Annotated[int, Field(ge=1)]
Stops = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)]


class Strict(BaseModel):
    """No field that is not declared, no number that is a text, no number that is none."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    """`include_usage` adds a last chunk with the usage; padding of chunks (`include_obfuscation`) is not done."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class Limits(Strict):
    """A request's own budget, within that of the server. Its seconds are the field `timeout`."""

    tokens: Count | None = None
    calls: Count | None = None
    forwards: Count | None = None


class Body(Strict):
    """What both endpoints take.

    model        a preset (`/v1/models`)
    n            how many of the search's solutions to return; they cost nothing more. The first is the chosen one, then
                 the best of every other answer by its votes, then repetitions. Fewer if fewer were found
    seed         of the search; the server's own if left out, so that the same request has the same answer
    max_tokens   of a solution
    timeout      seconds, waiting included; then the best answer so far
    search       settings of the preset's search, by their names in `conf/search`
    budget       of the search

    The last few say nothing about the answer and are accepted for the clients that send them.
    """

    model: str
    n: Count = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stops | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    search: dict[str, Any] = Field(default_factory=dict)
    budget: Limits = Field(default_factory=Limits)

    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_it_is_meant(cls, data: Any) -> Any:
        """Null means left out; a single stop is a list of one; fields that ask for nothing are nothing."""
        data = without_refused(data)
        if not isinstance(data, dict):
            return data
        given = {key: value for key, value in data.items() if value is not None}
        return given | ({"stop": [given["stop"]]} if isinstance(given.get("stop"), str) else {})

    @property
    def length(self) -> int | None:
        """Tokens of a solution at most; None for the search's own setting."""
        return self.max_tokens

    @property
    def sampling(self) -> dict[str, Any]:
        """What was said about sampling, under the names of `SamplingParams`."""
        said = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.length, "stop": self.stop}
        return {name: value for name, value in said.items() if value is not None}

    @property
    def with_usage(self) -> bool:
        """Whether a stream is to end with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


def _joined(content: Any) -> Any:
    """Text given in parts as one text. Raises: PydanticCustomError for a message or a part without text."""
    if content is None:
        raise _unsupported("a message must have text: this server calls no tools")
    if not isinstance(content, list):
        return content
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else part
        if kind != "text" or not isinstance(part.get("text"), str):
            raise _unsupported(f"a message may have parts of type text only, got {kind!r}")
    return "".join(part["text"] for part in content)


def _unsupported(what: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported", "{what}", {"what": what})


def _only(prompt: Any) -> Any:
    """The text in a list of one. Raises: PydanticCustomError for several, and for token ids."""
    if not isinstance(prompt, list):
        return prompt
    if len(prompt) != 1 or not isinstance(prompt[0], str):
        raise _unsupported("a request has one prompt, and that is text; send others beside it, at the same time")
    return prompt[0]


class Message(Strict):
    """One turn of a conversation. The rest may be there, and null or empty, as in a message that a client got and sends
    back; `reasoning_content` is progress we have sent, and no part of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined)]
    refusal: None = None
    name: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
    reasoning_content: str | None = None


class ChatBody(Body):
    """`/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None  # the new name of max_tokens

    @property
    def length(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise PydanticCustomError(
                "unsupported",
                "max_tokens and max_completion_tokens are the same setting; give one of them",
                {"field": "max_tokens"},
            )
        return self


class TextBody(Body):
    """`/v1/completions`: the prompt is continued as it is, one prompt a request."""

    prompt: Annotated[str, BeforeValidator(_only), Field(min_length=1)]
