"""Reads the text of a generation, what ended it and its counts from the JSON of a reply. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, cast

from decoding.validation import shorten
from reason.engines.http.errors import ResponseLost, treat_as_lost
from reason.engines.http.plausible import read_count, read_logprob, read_text
from reason.engines.openai_api.response_json import ChoiceJson, CompletionJson, MessageJson, ToolCallJson

TOOL_CALL_TAGS = ("<tool_call>", "</tool_call>")
"""What is put around a tool call that a server sends apart; most models with open weights write these themselves."""

EndCause = Literal["stop", "eos", "length", "unknown"]

_ENDED = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls")
_CUT_SHORT = ("length", "max_tokens", "content_filter")
_MATCHED_KEYS = ("stop_reason", "matched_stop")  # vLLM's and SGLang's field with the stop string that ended a text
_EXTRA_TOKENS = 16  # a server may count an end token or a begun one beyond max_tokens
_HIDDEN_PROMPT_TOKENS = 65536  # vendors put texts of their own around a prompt
_CHARACTERS_PER_TOKEN = 256  # the longest tokens of real vocabularies are 128 blanks


class TokenCounts(TypedDict):
    """Counts of a reply, under the names of `CompletionResponse`."""

    tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int


@dataclass(frozen=True)
class CompletionResponse:
    """A parsed reply.

    text                 with the stop string that ended it, where the server names that
    end_cause            `unknown`: the server does not say whether the text ended by itself or at a stop string
    tokens               tokens generated, by the server's count; None if it sends none
    prompt_tokens        tokens of the prompt, likewise
    cached_tokens        of these, tokens found in the server's cache
    token_logprobs       the text by tokens, with log-probabilities; empty where they were not requested
    top_logprobs         for each of these the log-probabilities of the most likely tokens; empty where there are none
    has_dropped_thought  whether the server sent a thought that is not in the text
    has_thought_apart    whether it sent a thought apart, dropped or not: it would not know one in a text to continue
    """

    text: str
    end_cause: EndCause
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    token_logprobs: tuple[tuple[str, float], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()
    has_dropped_thought: bool = False
    has_thought_apart: bool = False

    def extend(self, later: CompletionResponse, stop: Sequence[str]) -> CompletionResponse:
        """Returns this response, that broke off, with the one that goes on behind it, up to the first stop string."""
        text, end_cause = self.text + later.text, later.end_cause
        # one that begins in the first part and ends in the second is in neither
        end = find_first_stop(text, stop)
        if end is not None:
            text, end_cause = text[:end], "stop"
        return replace(
            later,
            text=text,
            end_cause=end_cause,
            tokens=None if self.tokens is None or later.tokens is None else self.tokens + later.tokens,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            token_logprobs=self.token_logprobs + later.token_logprobs,
            top_logprobs=self.top_logprobs + later.top_logprobs,
        )


@dataclass(frozen=True)
class RequestedText:
    """What was requested, as far as it limits what a true reply can say.

    stop          stop strings
    max_tokens    tokens to generate at most
    prompt_bytes  length of the prompt; a token has at least one byte
    thought_tags  opening and closing text of a thought that the server sends apart; None: such a thought is dropped
    """

    stop: tuple[str, ...]
    max_tokens: int
    prompt_bytes: int
    thought_tags: tuple[str, str] | None = None

    @property
    def max_text_length(self) -> int:
        """Characters that `max_tokens` tokens can have at most."""
        return _CHARACTERS_PER_TOKEN * (self.max_tokens + _EXTRA_TOKENS)

    def require_length(self, text: str) -> None:
        """Raises ResponseLost for a text that is too long for any tokenizer."""
        if len(text) > self.max_text_length:
            raise ResponseLost(f"a reply of {len(text)} characters is no reply to max_tokens={self.max_tokens}")


def parse_completion(body: object, requested: RequestedText) -> CompletionResponse:
    """Parses a whole reply. Raises: ResponseLost where it is incomplete."""
    with treat_as_lost("a completion"):
        choice = first_choice(body)
        end_cause, stop = _parse_end(choice, requested.stop)
        message = choice.get("message", choice)
        thought = read_thought(message)
        text = _parse_text(message)
        if thought and requested.thought_tags is not None:
            opening, closing = requested.thought_tags
            is_finished = text or (message.get("content") is not None and end_cause not in ("length", "stop"))
            text = opening + thought + (closing if is_finished else "") + text
        text += stop
        requested.require_length(text)
        counts = parse_usage(cast(CompletionJson, body), requested)
        if text and not counts["tokens"]:
            counts["tokens"] = None
        return CompletionResponse(
            text,
            end_cause,
            **counts,
            token_logprobs=parse_token_logprobs(choice),
            top_logprobs=parse_top_logprobs(choice),
            has_dropped_thought=bool(thought) and requested.thought_tags is None,
        )


def first_choice(body: object) -> ChoiceJson:
    """Returns the one choice that was requested. Raises: ResponseLost where there is none."""
    with treat_as_lost("a completion"):
        choices = cast(CompletionJson, body)["choices"]
        if not choices:
            raise ResponseLost("the reply has no choices")
        # some servers send more than was asked for, in any order
        choice = next((one for one in choices if isinstance(one, dict) and not one.get("index")), choices[0])
        if not isinstance(choice, dict):
            raise TypeError(f"its choice is a {type(choice).__name__}")
        return choice


def names_end_cause(body: object) -> bool:
    """Returns whether this server tells a stop string from the end of the text."""
    return any(key in first_choice(body) for key in _MATCHED_KEYS)


def parse_usage(body: CompletionJson, requested: RequestedText) -> TokenCounts:
    """Returns the token counts of a reply; those that cannot be true count as not reported."""
    reported = body.get("usage")
    usage: Mapping[str, object] = reported if isinstance(reported, dict) else {}
    details = usage.get("prompt_tokens_details")
    prompt_tokens = read_count(usage.get("prompt_tokens"), requested.prompt_bytes + _HIDDEN_PROMPT_TOKENS)
    most_cached = requested.prompt_bytes if prompt_tokens is None else prompt_tokens
    return {
        "tokens": read_count(usage.get("completion_tokens"), requested.max_tokens + _EXTRA_TOKENS),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": read_count(details.get("cached_tokens"), most_cached) or 0 if isinstance(details, dict) else 0,
    }


def parse_token_logprobs(choice: ChoiceJson) -> tuple[tuple[str, float], ...]:
    """Returns the tokens of a choice with their log-probabilities, from the shape of a chat or of a completion.

    Without those where one of them is none: they are an extra of this protocol, so they count as not reported.
    """
    try:
        logprobs = choice.get("logprobs") or {}
        if "content" in logprobs:
            pairs = [(entry["token"], entry["logprob"]) for entry in logprobs["content"] or ()]
        else:
            pairs = list(zip(logprobs.get("tokens") or (), logprobs.get("token_logprobs") or (), strict=True))
        return tuple((read_text(token), read_logprob(value)) for token, value in pairs)
    except (LookupError, TypeError, ValueError, AttributeError):
        return ()


def parse_top_logprobs(choice: ChoiceJson) -> tuple[tuple[float, ...], ...]:
    """Returns the log-probabilities of the most likely tokens, one tuple a token; as `parse_token_logprobs`."""
    try:
        logprobs = choice.get("logprobs") or {}
        if "content" in logprobs:
            tops = [[top["logprob"] for top in entry["top_logprobs"]] for entry in logprobs["content"] or ()]
        else:
            tops = [list(top.values()) for top in logprobs.get("top_logprobs") or ()]
        return tuple(tuple(map(read_logprob, top)) for top in tops)
    except (LookupError, TypeError, ValueError, AttributeError):
        return ()


def parse_end_cause(choice: ChoiceJson) -> EndCause:
    """Returns what ended a choice. Raises: ResponseLost where it was broken off."""
    return _parse_end(choice, ())[0]


def find_first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Returns the end of the stop string that is complete first; None if the text has none.

    >>> find_first_stop("ab\\n\\ncd", ("d", "\\n\\n")), find_first_stop("ab", ("c",))
    (4, None)
    """
    return min((at + len(one) for one in stop if (at := text.find(one)) >= 0), default=None)


def read_thought(message: MessageJson) -> str:
    """Returns the thought that a server sends apart from the text; "" without one. Servers name the field differently.

    >>> read_thought({"reasoning_content": None, "reasoning": "1 and 1", "content": "2"})
    '1 and 1'
    """
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    return read_text(thought)


def find_missing_tags(begun_answer: str, tags: tuple[str, str]) -> tuple[str, str]:
    """Returns the tags of a thought that a server sends apart, without those that the begun answer has.

    A server that was given a begun thought sends the rest of it. Some send the text behind one as a thought, too.

    >>> tags = ("<think>", "</think>")
    >>> [find_missing_tags(text, tags) for text in ("", "<think>1 and", "<think>1</think>So ")]
    [('<think>', '</think>'), ('', '</think>'), ('', '')]
    """
    opening, closing = tags
    if closing in begun_answer:
        return "", ""
    return ("", closing) if opening in begun_answer else tags


def _parse_text(message: MessageJson) -> str:
    calls = message.get("tool_calls")
    if calls:
        return read_text(message.get("content") or "") + "".join(_write_tool_call(call) for call in calls)
    text = message["text"] if "text" in message else message["content"]
    if text is None:  # a refused answer, or a thought that was not finished
        text = message.get("refusal") or ""
    return read_text(text)


def _write_tool_call(call: ToolCallJson) -> str:
    """Returns a tool call as models write it, in the form that most were trained on."""
    name, arguments = read_text(call["function"]["name"]), call["function"].get("arguments") or "{}"
    if not isinstance(arguments, str):  # some servers send the object itself
        arguments = json.dumps(arguments)
    return f'{TOOL_CALL_TAGS[0]}{{"name": {json.dumps(name)}, "arguments": {arguments}}}{TOOL_CALL_TAGS[1]}'


def _parse_end(choice: ChoiceJson, stop: Sequence[str]) -> tuple[EndCause, str]:
    """Returns what ended the text, and the stop string that the server cut from its end."""
    finish = choice["finish_reason"]
    if finish in _CUT_SHORT:
        return "length", ""
    if finish not in _ENDED:
        raise ResponseLost(f"the reply was broken off: finish_reason {shorten(finish)}")
    matches = [cast(Mapping[str, object], choice)[key] for key in _MATCHED_KEYS if key in choice]
    if not matches:
        return "unknown", ""
    # A string that was not requested is one of the server's, such as a template's end of a turn: the text ended.
    matched = next((match for match in matches if isinstance(match, str) and match in stop), None)
    return ("eos", "") if matched is None else ("stop", matched)
