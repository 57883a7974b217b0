"""One generation in the words of /completions and /chat/completions: a request as JSON, JSON as a reply. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from decoding.core import SamplingParams
from reason.engines.sglang_client.errors import Lost
from reason.models.byte_tokenizer import conversation_of

NEUTRAL = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0}
"""Where each field of `SamplingParams` changes nothing."""

Ended = Literal["stop", "eos", "length", "untold"]

_BY_ITSELF = ("stop", "eos", "eos_token", "end_turn", "stop_sequence")
_CUT_SHORT = ("length", "max_tokens", "content_filter")
_MATCHED = ("stop_reason", "matched_stop")  # vLLM's and SGLang's word for what ended a text


@dataclass(frozen=True, kw_only=True)
class Form:
    """How these servers are asked; `conf/engine/openai.yaml` says what the settings are."""

    model: str
    chat: bool
    prefill: bool = False
    logprobs: bool = False
    max_tokens_field: str = "max_tokens"
    omit: tuple[str, ...] = ()
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where requests go."""
        return "/chat/completions" if self.chat else "/completions"

    def check(self, params: SamplingParams) -> None:
        """Raises: ValueError for sampling that would not reach the servers."""
        for name, neutral in NEUTRAL.items():
            value = getattr(params, name)
            if name in self.omit and value != neutral:
                raise ValueError(f"{name}={value} is not sent (engine.omit); set search.sampling.{name}={neutral}")
        if params.stop_token_ids:
            raise ValueError("search.sampling.stop_token_ids are ids and servers are sent text; choose stop")

    def asked(self, text: str) -> dict[str, Any]:
        """What the model is to go on with. Raises: ValueError where these servers cannot be asked to."""
        if not self.chat:
            return {"prompt": text}
        found = conversation_of(text)
        if found is None:
            raise ValueError("engine.api=chat takes conversations, not texts to go on with; choose api=completions")
        fields, said = found
        if not said:
            return fields
        if not self.prefill:
            raise ValueError("engine.api=chat begins every answer anew; to go on with one set engine.prefill=true")
        messages = [*fields["messages"], {"role": "assistant", "content": said}]
        return {**fields, "messages": messages, "continue_final_message": True, "add_generation_prompt": False}

    def body(self, text: str, params: SamplingParams, seed: int, *, stream: bool = False) -> dict[str, Any]:
        """The body of a request. With `stream` the servers are not told of stop strings, so that they show them.

        Nothing is left to a server's defaults that it may have of its own: vLLM takes them from the model, llama.cpp
        has a top_k and a min_p. A chat server need not know those two and is sent them where they do something.
        """
        filters = {"temperature": params.temperature, "top_p": params.top_p}
        filters |= {"top_k": params.top_k or -1, "min_p": params.min_p}
        on = {name for name, neutral in NEUTRAL.items() if getattr(params, name) != neutral}
        left_out = {*self.omit, *({"top_k", "min_p"} - on if self.chat else ())}
        sent = {**filters, "seed": seed & 0x7FFFFFFF}  # not all servers take more bits
        return {
            "model": self.model,
            **self.asked(text),
            self.max_tokens_field: params.max_tokens,
            **{name: value for name, value in sent.items() if name not in left_out},
            **({"stop": list(params.stop)} if params.stop and not stream else {}),
            **({"logprobs": 1} if self.logprobs else {}),
            **({"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}),
            **self.extra_body,
        }


@dataclass(frozen=True)
class Reply:
    """What a server made of a request.

    text           a stop string that ended it included, where the server says which
    ended          `untold`: by itself or by a stop string, the server does not say
    tokens         generated, by the server's count; None if it does not say
    prompt_tokens  likewise
    cached_tokens  of the prompt's, found in the server's cache
    pieces         the text token by token, with log-probabilities; empty where they were not asked for
    """

    text: str
    ended: Ended
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    pieces: tuple[tuple[str, float], ...] = ()


def reply_of(body: Any) -> Reply:
    """The reply in a whole body. Raises: Lost where it is not one."""
    try:
        choice = choice_of(body)
        said = choice.get("message", choice)
        ended, stop = _end(choice)
        return Reply(_text(said) + stop, ended, **usage_of(body), pieces=pieces_of(choice))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Lost(f"the reply is not a completion: {type(error).__name__} {error}") from error


def choice_of(body: Any) -> Mapping[str, Any]:
    """The one choice that was asked for. Raises: Lost where there is none."""
    choices = body["choices"]
    if not choices:
        raise Lost("the reply has no choices")
    choice: Mapping[str, Any] = choices[0]
    return choice


def says_what_ended(body: Any) -> bool:
    """Whether this server tells a stop string from the end of the text."""
    return any(key in choice_of(body) for key in _MATCHED)


def usage_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of a body, as `Reply` names them."""
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return {
        "tokens": usage.get("completion_tokens"),
        "prompt_tokens": usage.get("prompt_tokens"),
        "cached_tokens": int(details.get("cached_tokens") or 0),
    }


def pieces_of(choice: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Tokens and log-probabilities of a choice, in either of the shapes there are."""
    told = choice.get("logprobs") or {}
    if "content" in told:
        return tuple((entry["token"], float(entry["logprob"])) for entry in told["content"] or ())
    numbers = told.get("token_logprobs") or ()
    return tuple((piece, float(number)) for piece, number in zip(told.get("tokens") or (), numbers, strict=True))


def finish_of(choice: Mapping[str, Any]) -> Ended:
    """Why a choice ended. Raises: Lost where it was broken off."""
    return _end(choice)[0]


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where the stop string that is complete first ends; None if there is none.

    >>> first_stop("ab\\n\\ncd", ("d", "\\n\\n")), first_stop("ab", ("c",))
    (4, None)
    """
    return min((at + len(one) for one in stop if (at := text.find(one)) >= 0), default=None)


def _text(said: Mapping[str, Any]) -> str:
    text = said["text"] if "text" in said else said["content"]
    if text is None:  # an answer refused, or all of it thoughts that are not shown
        text = said.get("refusal") or ""
    if not isinstance(text, str):
        raise TypeError(f"its text is {text!r}")
    return text


def _end(choice: Mapping[str, Any]) -> tuple[Ended, str]:
    """Why it ended, and the stop string that is missing from its text."""
    finish = choice["finish_reason"]
    if finish in _CUT_SHORT:
        return "length", ""
    if finish not in _BY_ITSELF:
        raise Lost(f"the reply was broken off: finish_reason {finish!r}")
    told = [choice[key] for key in _MATCHED if key in choice]
    if not told:
        return "untold", ""
    matched = next((one for one in told if isinstance(one, str)), None)
    return ("eos", "") if matched is None else ("stop", matched)
