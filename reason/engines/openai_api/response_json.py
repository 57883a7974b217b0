"""The JSON of replies and of streamed events, as far as it is read. Servers name and fill fields differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict


class MessageJson(TypedDict, total=False):
    """`message` of a chat choice, `delta` of a streamed one, or the text of a completion."""

    text: str | None
    content: str | None
    refusal: str | None
    reasoning_content: str | None
    reasoning: str | None
    tool_calls: Sequence[ToolCallJson] | None


class FunctionJson(TypedDict):
    """What a tool call calls; `arguments` is JSON in a text, or an object with some servers."""

    name: str
    arguments: object


class ToolCallJson(TypedDict):
    """A tool call of a chat choice."""

    function: FunctionJson


class TopLogprobJson(TypedDict):
    """A likely token of a chat choice."""

    token: str
    logprob: float


class LogprobEntryJson(TopLogprobJson, total=False):
    """A token of a chat choice, and the most likely ones in its place."""

    top_logprobs: Sequence[TopLogprobJson]


class LogprobsJson(TypedDict, total=False):
    """`logprobs`: `content` of a chat choice, the other three of a completion."""

    content: Sequence[LogprobEntryJson] | None
    tokens: Sequence[str] | None
    token_logprobs: Sequence[float] | None
    top_logprobs: Sequence[Mapping[str, float]] | None


class ChoiceJson(MessageJson, total=False):
    """One choice of a reply or of a streamed event."""

    message: MessageJson
    delta: MessageJson
    finish_reason: str | None
    stop_reason: str | int | None
    matched_stop: str | int | None
    logprobs: LogprobsJson | None


class PromptDetailsJson(TypedDict, total=False):
    """`prompt_tokens_details` of a usage."""

    cached_tokens: int | None


class UsageJson(TypedDict, total=False):
    """`usage` of a reply."""

    prompt_tokens: int | None
    completion_tokens: int | None
    prompt_tokens_details: PromptDetailsJson | None


class CompletionJson(TypedDict, total=False):
    """A reply or a streamed event. Servers are not trusted to send one: any other shape counts as a lost response."""

    choices: Sequence[ChoiceJson]
    usage: UsageJson | None
