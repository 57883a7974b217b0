"""One generation in SGLang's words: a request as JSON, and the JSON of a reply as tokens. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from decoding.core import GenerationRequest, Tokens
from reason.engines.sglang_client.errors import Lost

PROBLEM = "problem_id"  # where a request says which problem it belongs to, for whoever shares a table per problem
_NO_NUMBER = "NaN happened"

Reason = Literal["stop", "eos", "length", "abort"]


@dataclass(frozen=True)
class Reply:
    """What a server made of a request.

    reason         stop (a string), eos (a token), length or abort
    cached_tokens  of the prefix, found in the server's cache
    forwards       passes that chose its tokens, that of the prompt included
    drafted        tokens guessed by the server's own speculation, padding included
    """

    tokens: Tokens
    logprobs: tuple[float, ...]
    reason: Reason
    cached_tokens: int
    forwards: int
    drafted: int


def generate_body(request: GenerationRequest, rid: str, max_tokens: int) -> dict[str, Any]:
    """The body of POST /generate. Nothing is left to the server's defaults: an unset max_new_tokens would be 128.

    The token that ends a generation is part of it, so nothing may be trimmed. Seeds are signed there, and 64 bits.
    """
    params = request.params
    return {
        "rid": rid,
        "input_ids": list(request.prefix),
        "sampling_params": {
            "max_new_tokens": max_tokens,
            "temperature": params.temperature,
            "top_k": params.top_k or -1,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "stop": list(params.stop),
            "stop_token_ids": list(params.stop_token_ids),
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "sampling_seed": signed(request.seed),
            "custom_params": {PROBLEM: request.group},
        },
        "return_logprob": True,
        "stream": False,
    }


def read_body(tokens: Tokens, start: int, rid: str) -> dict[str, Any]:
    """The body of a request that generates nothing and tells how likely the tokens from `start` on were."""
    return {
        "rid": rid,
        "input_ids": list(tokens),
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": start - 1,  # the first value told has no context of its own and is null
        "stream": False,
    }


def signed(seed: int) -> int:
    """The 64 low bits as a signed number, which is how a server takes them.

    >>> signed(5), signed(2**64 - 1)
    (5, -1)
    """
    low = seed & 0xFFFFFFFFFFFFFFFF
    return low - (1 << 64) if low >> 63 else low


def reply_of(body: Any) -> Reply:
    """Raises: Lost where the reply is not whole."""
    try:
        meta, tokens = body["meta_info"], tuple(int(token) for token in body["output_ids"])
        finish = meta["finish_reason"]
        logprobs = tuple(float(entry[0]) for entry in meta.get("output_token_logprobs") or ())
        if len(logprobs) != len(tokens):
            raise Lost(f"the reply has {len(tokens)} tokens and {len(logprobs)} log-probabilities")
        checks = int(meta.get("spec_verify_ct") or 0)
        return Reply(
            tokens,
            logprobs,
            _reason(finish),
            cached_tokens=int(meta.get("cached_tokens") or 0),
            forwards=1 + checks if checks else len(tokens),
            drafted=int(meta.get("spec_num_proposed_drafts") or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Lost(f"the reply is not one of /generate: {type(error).__name__} {error}") from error


def logprobs_of(body: Any, count: int) -> tuple[float, ...]:
    """The last `count` log-probabilities of a `read_body` request. Raises: Lost where the reply is not whole."""
    try:
        entries = body["meta_info"]["input_token_logprobs"][-count:]
        logprobs = tuple(float(entry[0]) for entry in entries)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Lost(f"the reply has no log-probabilities of its input: {type(error).__name__} {error}") from error
    if len(logprobs) != count:
        raise Lost(f"{count} log-probabilities were asked for and {len(logprobs)} came")
    return logprobs


def error_text(body: Any) -> str:
    """What an error reply says, in whichever of the shapes that servers and routers use.

    >>> error_text({"error": {"message": "too long"}}), error_text({"object": "error", "message": "too long"})
    ('too long', 'too long')
    >>> error_text({"error": "no such field"}), error_text({"detail": [1]}), error_text("oops")
    ('no such field', '[1]', 'oops')
    """
    while isinstance(body, Mapping):
        inner = next((body[key] for key in ("error", "message", "detail") if body.get(key)), None)
        if inner is None:
            break
        body = inner
    return str(body)


def _reason(finish: Mapping[str, Any]) -> Reason:
    if finish["type"] == "stop":
        if finish.get("matched") == _NO_NUMBER:
            raise Lost("the server's model produced something that is not a number")
        return "eos" if isinstance(finish.get("matched"), int) else "stop"
    if finish["type"] == "length":
        return "length"
    if finish["type"] == "abort":
        return "abort"
    raise ValueError(f"unknown finish_reason {finish['type']!r}")
