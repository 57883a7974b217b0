"""Schemas of the request bodies; unknown fields are errors."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from decoding.core import MAX_TEMPERATURE
from decoding.validation import MAX_INT, MAX_VALUE, InvalidText, require_text
from reason.serve.messages import (
    MAX_TOOLS,
    ChatMessage,
    FunctionTool,
    NamedTool,
    ResponseFormat,
    check_tool_choice,
    check_tool_results,
)
from reason.serve.strict_model import StrictModel, unsupported
from reason.serve.unsupported_fields import drop_neutral_fields

PositiveInt = Annotated[int, Field(ge=1, le=MAX_VALUE)]
BudgetLimit = Annotated[int, Field(ge=1, le=MAX_INT)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
StopStrings = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)]


class StreamOptions(StrictModel):
    """`include_usage` adds a last chunk with the usage; padding of chunks (`include_obfuscation`) is not supported."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class BudgetLimits(StrictModel):
    """The budget of one request, within that of the server. Its time limit is the field `timeout`."""

    tokens: BudgetLimit | None = None
    calls: BudgetLimit | None = None
    forwards: BudgetLimit | None = None


class CompletionRequest(StrictModel):
    """The fields of both endpoints.

    model        a preset (`/v1/models`)
    n            how many of the search's solutions to return, at no cost. The first is the chosen one, then the best
                 of every other answer by its votes, then repetitions. Fewer if the search found fewer
    seed         of the search; the server's seed if left out, so that the same request has the same answer
    max_tokens   of a solution
    top_k, min_p  as vLLM and SGLang have them; top_k -1 and 0 keep all
    timeout      seconds, time in the queue included; then the best answer so far
    reasoning_effort  the search in place of the preset's (`reason.serve.presets.EFFORTS`)
    search       settings of the preset's search, by their names in `conf/search`
    budget       of the search

    The last five do not influence the answer and are accepted because some clients send them.
    """

    model: str
    n: PositiveInt = 1
    seed: Annotated[int, Field(ge=-MAX_INT - 1, le=MAX_INT)] | None = None
    stop: StopStrings | None = None
    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_VALUE)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_VALUE)] | None = None
    reasoning_effort: ReasoningEffort | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    search: dict[str, object] = Field(default_factory=dict)
    budget: BudgetLimits = Field(default_factory=BudgetLimits)

    user: str | None = None
    metadata: dict[str, object] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _normalize_fields(cls, data: object) -> object:
        """Drops nulls and unsupported fields with a neutral value; wraps a single stop string in a list.

        Raises: PydanticCustomError naming the field whose text is not Unicode, here for all fields of all endpoints.
        """
        try:
            require_text("", data)
        except InvalidText as error:
            raise PydanticCustomError(
                "invalid_text", "{message}", {"message": str(error), "field": error.field}
            ) from None
        data = drop_neutral_fields(data, cls.model_fields)
        if not isinstance(data, dict):
            return data
        given = {key: value for key, value in data.items() if value is not None}
        return given | ({"stop": [given["stop"]]} if isinstance(given.get("stop"), str) else {})

    @property
    def length(self) -> int | None:
        """Maximum tokens of a solution; None for the setting of the preset."""
        return self.max_tokens

    @property
    def with_logprobs(self) -> bool:
        """True where the log-probabilities of the chosen text are to be in the reply."""
        return False

    @property
    def num_alternatives(self) -> int:
        """Number of other tokens whose log-probabilities are to be in the reply."""
        return 0

    @property
    def sampling_settings(self) -> dict[str, object]:
        """The sampling settings that the request has, under their names in `SamplingParams`."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(0, self.top_k),
            "min_p": self.min_p,
            "max_tokens": self.length,
            "stop": self.stop,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def with_usage(self) -> bool:
        """True where a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


def _single_prompt(prompt: object) -> object:
    """Returns the text of a list with one prompt. Raises: PydanticCustomError for several prompts and for token ids."""
    if not isinstance(prompt, list):
        return prompt
    if len(prompt) != 1 or not isinstance(prompt[0], str):
        raise unsupported("a request has one prompt, and it is text; send one request per prompt, concurrently")
    return prompt[0]


def _none_for_false(value: object) -> object:
    """Returns None for False, which requests nothing in the chat's form of the same field."""
    return None if value is False else value


class ChatCompletionRequest(CompletionRequest):
    """`/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1), AfterValidator(check_tool_results)]
    max_completion_tokens: PositiveInt | None = None  # the new name of max_tokens
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    response_format: ResponseFormat | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: Annotated[Literal["none", "auto", "required"] | NamedTool, BeforeValidator(check_tool_choice)] = "auto"
    parallel_tool_calls: bool = True

    @property
    def length(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def with_logprobs(self) -> bool:
        return self.logprobs or self.top_logprobs > 0

    @property
    def num_alternatives(self) -> int:
        return self.top_logprobs

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise unsupported(
                "max_tokens and max_completion_tokens are the same setting; give one of them", field="max_tokens"
            )
        return self


class TextCompletionRequest(CompletionRequest):
    """`/v1/completions`: one prompt, which is continued as it is."""

    prompt: Annotated[str, BeforeValidator(_single_prompt), Field(min_length=1)]
    logprobs: Annotated[Annotated[int, Field(ge=0, le=20)] | None, BeforeValidator(_none_for_false)] = None

    @property
    def with_logprobs(self) -> bool:
        return self.logprobs is not None

    @property
    def num_alternatives(self) -> int:
        return self.logprobs or 0
