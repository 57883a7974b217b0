"""Converts one generation to the JSON of /completions and /chat/completions and back. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict, cast

from decoding.core import SamplingParams
from decoding.validation import shorten
from reason.engines.http.errors import ResponseLost, treat_as_lost
from reason.engines.http.plausible import read_count, read_logprob, read_text
from reason.models.byte_tokenizer import parse_conversation

NEUTRAL = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0}
"""The value at which each field of `SamplingParams` changes nothing."""

TOOL_CALL_TAGS = ("<tool_call>", "</tool_call>")
"""What is put around a tool call that a server sends apart; most models with open weights write these themselves."""

EndCause = Literal["stop", "eos", "length", "unknown"]
JsonBody = dict[str, object]

_ENDED = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls")
_CUT_SHORT = ("length", "max_tokens", "content_filter")
_MATCHED_KEYS = ("stop_reason", "matched_stop")  # vLLM's and SGLang's field with the stop string that ended a text
_EXTRA_TOKENS = 16  # a server may count an end token or a begun one beyond max_tokens
_HIDDEN_PROMPT_TOKENS = 65536  # vendors put texts of their own around a prompt
_CHARACTERS_PER_TOKEN = 256  # the longest tokens of real vocabularies are 128 blanks


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


class TokenCounts(TypedDict):
    """Counts of a reply, under the names of `CompletionResponse`."""

    tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int


@dataclass(frozen=True, kw_only=True)
class RequestFormat:
    """How requests to these servers are written; `conf/engine/openai.yaml` describes the settings."""

    model: str
    chat: bool
    prefill: bool = False
    logprobs: bool = False
    max_tokens_field: str = "max_tokens"
    omit: tuple[str, ...] = ()
    extra_body: Mapping[str, object] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The endpoint that requests go to."""
        return "/chat/completions" if self.chat else "/completions"

    def validate_params(self, params: SamplingParams) -> None:
        """Raises ValueError for sampling parameters that would not reach the servers."""
        for name, neutral in NEUTRAL.items():
            value = getattr(params, name)
            if name in self.omit and value != neutral:
                raise ValueError(f"{name}={value} is not sent (engine.omit); set search.sampling.{name}={neutral}")
        if params.stop_token_ids:
            raise ValueError("search.sampling.stop_token_ids are ids and servers are sent text; choose stop")

    def build_prompt(self, text: str) -> JsonBody:
        """Returns the fields with the text to continue. Raises: ValueError where these servers cannot continue it."""
        if not self.chat:
            return {"prompt": text}
        parsed = parse_conversation(text)
        if parsed is None:
            raise ValueError("engine.api=chat takes conversations, not texts to continue; choose api=completions")
        fields, answer = parsed
        if not answer:
            return fields
        if not self.prefill:
            raise ValueError("engine.api=chat begins every answer anew; to continue one set engine.prefill=true")
        conversation = cast(Sequence[Mapping[str, str]], fields["messages"])
        messages = [*conversation, {"role": "assistant", "content": answer}]
        return {**fields, "messages": messages, "continue_final_message": True, "add_generation_prompt": False}

    def has_tools(self, text: str) -> bool:
        """Returns whether the conversation with which this text begins offers tools."""
        return self.chat and (parsed := parse_conversation(text)) is not None and bool(parsed[0].get("tools"))

    def build_body(
        self,
        text: str,
        params: SamplingParams,
        seed: int,
        *,
        stream: bool = False,
        num_top: int = 0,
        json_schema: str | None = None,
    ) -> JsonBody:
        """Returns the body of a request. A streamed one has no stop strings, so that the server returns them.

        All sampling fields are sent, because defaults differ: vLLM takes them from the model, llama.cpp has a top_k and
        a min_p. Chat servers may not know those two and receive them only where they change something.
        """
        filters = {"temperature": params.temperature, "top_p": params.top_p}
        filters |= {"top_k": params.top_k or -1, "min_p": params.min_p}
        effective = {name for name, neutral in NEUTRAL.items() if getattr(params, name) != neutral}
        left_out = {*self.omit, *({"top_k", "min_p"} - effective if self.chat else ())}
        sampling = {**filters, "seed": seed & 0x7FFFFFFF}  # not all servers take more than 31 bits
        return {
            "model": self.model,
            **self.build_prompt(text),
            self.max_tokens_field: params.max_tokens,
            **{name: value for name, value in sampling.items() if name not in left_out},
            **({"stop": list(params.stop)} if params.stop and not stream else {}),
            **(self._build_logprobs(num_top) if self.logprobs else {}),
            **({"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}),
            **({} if json_schema is None else {"response_format": _build_response_format(json_schema)}),
            **self.extra_body,
        }

    def _build_logprobs(self, num_top: int) -> JsonBody:
        if not self.chat:
            return {"logprobs": max(1, num_top)}
        return {"logprobs": True, **({"top_logprobs": num_top} if num_top else {})}

    def build_probe(self, answer: str | None = None) -> JsonBody:
        """Returns the body of a request for one token, with server defaults; `answer` is text to continue in a chat."""
        if not self.chat:
            prompt: JsonBody = {"prompt": "?"}
        else:
            prompt = {"messages": [{"role": "user", "content": "?"}]}
        if answer is not None:
            messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
            prompt = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
        return {"model": self.model, **prompt, self.max_tokens_field: 1, **self.extra_body}


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
    """

    text: str
    end_cause: EndCause
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    token_logprobs: tuple[tuple[str, float], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()
    has_dropped_thought: bool = False

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
        choice = choices[0]
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


def _build_response_format(json_schema: str) -> JsonBody:
    schema = {"name": "reply", "schema": json.loads(json_schema)}
    return {"type": "json_schema", "json_schema": schema}


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
