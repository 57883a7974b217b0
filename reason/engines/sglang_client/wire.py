"""Converts generations to the JSON of SGLang's /generate and back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, cast

from decoding.core import GenerationRequest, Tokens
from decoding.validation import shorten
from reason.engines.http.errors import ResponseLost, treat_as_lost
from reason.engines.http.plausible import read_count, read_logprob, read_token

PROBLEM_KEY = "problem_id"
"""Custom parameter with the request's problem, for a server's drafter that shares a table per problem."""

_NAN_STOP = "NaN happened"
_MAX_DRAFT = 1024  # draft tokens of one verification; real servers verify some tens

EndReason = Literal["stop", "eos", "length", "abort"]
JsonBody = dict[str, object]

LogprobEntry = Sequence[float]
"""`[log-probability, token id, text]`."""

TopLogprobs = tuple[tuple[float, ...], ...]


class FinishJson(TypedDict, total=False):
    """`finish_reason` of a reply; `matched` is the stop string or the id of the end token."""

    type: str
    matched: int | str | None


class MetaInfoJson(TypedDict, total=False):
    """`meta_info` of a reply, as far as it is read here."""

    finish_reason: FinishJson | None
    completion_tokens: int
    output_token_logprobs: Sequence[LogprobEntry] | None
    input_token_logprobs: Sequence[LogprobEntry]
    output_top_logprobs: Sequence[Sequence[LogprobEntry]]
    input_top_logprobs: Sequence[Sequence[LogprobEntry]]
    cached_tokens: int | None
    spec_verify_ct: int | None
    spec_num_proposed_drafts: int | None


class GenerateJson(TypedDict):
    """A reply of /generate. Servers are not trusted to send one: parse functions handle any other shape as lost."""

    meta_info: MetaInfoJson
    output_ids: Sequence[int]


@dataclass(frozen=True)
class GenerateResponse:
    """A parsed reply of /generate.

    reason         stop (a string), eos (a token), length or abort
    cached_tokens  tokens of the prefix found in the server's cache
    forwards       forward passes that chose its tokens, that of the prompt included
    drafted        draft tokens of the server's own speculation, padding included
    top_logprobs   log-probabilities of the most likely tokens at each place; empty where not requested
    """

    tokens: Tokens
    logprobs: tuple[float, ...]
    reason: EndReason
    cached_tokens: int
    forwards: int
    drafted: int
    top_logprobs: TopLogprobs = ()

    def extend(self, later: GenerateResponse) -> GenerateResponse:
        """Returns this response, that broke off, with the one that goes on behind it."""
        return replace(
            later,
            tokens=self.tokens + later.tokens,
            logprobs=self.logprobs + later.logprobs,
            cached_tokens=self.cached_tokens,
            forwards=self.forwards + later.forwards,
            drafted=self.drafted + later.drafted,
            top_logprobs=self.top_logprobs + later.top_logprobs,
        )


def build_generate_body(
    request: GenerationRequest,
    request_id: str,
    max_tokens: int,
    *,
    received: Tokens = (),
    stream_interval: int | None = None,
) -> JsonBody:
    """Returns the body of POST /generate for one generation.

    Every field is sent: the server's default of max_new_tokens, for one, is 128.

    received         tokens of this generation that are here already, and are not generated again
    stream_interval  tokens of each event of a stream; None asks for a whole reply
    """
    params = request.params
    return {
        "rid": request_id,
        "input_ids": [*request.prefix, *received],
        "sampling_params": {
            "max_new_tokens": max_tokens,
            "temperature": params.temperature,
            "top_k": params.top_k or -1,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "stop": list(params.stop),
            "stop_token_ids": list(params.stop_token_ids),
            "no_stop_trim": True,  # the token that ends a generation is part of it
            "skip_special_tokens": False,
            "sampling_seed": to_signed_64(request.seed),
            "custom_params": {PROBLEM_KEY: request.group},
            **({} if request.json_schema is None else {"json_schema": request.json_schema}),
            **({} if stream_interval is None else {"stream_interval": stream_interval}),
        },
        "return_logprob": True,
        **({"top_logprobs_num": request.num_top} if request.num_top else {}),
        "stream": stream_interval is not None,
    }


def build_prefill_body(tokens: Tokens, logprob_start: int, request_id: str, num_top: int = 0) -> JsonBody:
    """Returns the body of a request that generates nothing and returns log-probabilities of its input.

    logprob_start  index of the first token that the reply has an entry for; that entry has no value
    num_top        most likely tokens at each place that the reply has log-probabilities of too
    """
    return {
        "rid": request_id,
        "input_ids": list(tokens),
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": logprob_start,
        **({"top_logprobs_num": num_top} if num_top else {}),
        "stream": False,
    }


def to_signed_64(seed: int) -> int:
    """Returns the 64 low bits as a signed number, the form in which a server takes seeds.

    >>> to_signed_64(5), to_signed_64(2**64 - 1)
    (5, -1)
    """
    low = seed & 0xFFFFFFFFFFFFFFFF
    return low - (1 << 64) if low >> 63 else low


def parse_generate_response(
    body: object, *, vocab_size: int, max_tokens: int, prefix_length: int, num_top: int = 0
) -> GenerateResponse:
    """Parses a reply of /generate. Counts that cannot be true count as not reported.

    Raises: ResponseLost where it is incomplete, or has tokens or log-probabilities that are none.
    """
    with treat_as_lost("one of /generate"):
        reply = cast(GenerateJson, body)
        meta, (tokens, logprobs, top_logprobs) = reply["meta_info"], parse_output(reply, vocab_size, num_top)
        if len(tokens) > max_tokens:
            raise ResponseLost(f"the reply has {len(tokens)} tokens and {max_tokens} were requested")
        finish = meta["finish_reason"] or {}
        num_verifications = read_count(meta.get("spec_verify_ct"), len(tokens)) or 0
        most_drafted = _MAX_DRAFT * num_verifications
        return GenerateResponse(
            tokens,
            logprobs,
            _parse_finish(finish),
            cached_tokens=read_count(meta.get("cached_tokens"), prefix_length) or 0,
            forwards=1 + num_verifications if num_verifications else len(tokens),
            drafted=read_count(meta.get("spec_num_proposed_drafts"), most_drafted) or 0,
            top_logprobs=top_logprobs,
        )


def parse_output(
    reply: GenerateJson, vocab_size: int, num_top: int, start: int = 0
) -> tuple[Tokens, tuple[float, ...], TopLogprobs]:
    """Returns the tokens of a reply from the one numbered `start` on, their log-probabilities and the likely tokens.

    Raises: ResponseLost, or what reading JSON of another shape raises.
    """
    meta, tokens = reply["meta_info"], tuple(read_token(token, vocab_size) for token in reply["output_ids"][start:])
    logprobs = tuple(read_logprob(entry[0]) for entry in (meta.get("output_token_logprobs") or ())[start:])
    if len(logprobs) != len(tokens):
        raise ResponseLost(f"the reply has {len(tokens)} tokens and {len(logprobs)} log-probabilities")
    return (
        tokens,
        logprobs,
        _parse_rows((meta.get("output_top_logprobs") or ())[start:], len(tokens)) if num_top else (),
    )


def parse_input_logprobs(body: object, count: int) -> tuple[float, ...]:
    """Returns the last `count` log-probabilities of a prefill reply. Raises: ResponseLost where it is incomplete."""
    with treat_as_lost("one with log-probabilities of its input"):
        entries = cast(GenerateJson, body)["meta_info"]["input_token_logprobs"][-count:]
        logprobs = tuple(read_logprob(entry[0]) for entry in entries)
    if len(logprobs) != count:
        raise ResponseLost(f"{count} log-probabilities were asked for and {len(logprobs)} came")
    return logprobs


def parse_input_top_logprobs(body: object, count: int) -> TopLogprobs:
    """Returns the last `count` rows of a prefill reply. Raises: ResponseLost where it is incomplete."""
    with treat_as_lost("one with likely tokens of its input"):
        return _parse_rows(cast(GenerateJson, body)["meta_info"]["input_top_logprobs"][-count:], count)


def _parse_rows(rows: Sequence[Sequence[LogprobEntry]] | None, count: int) -> TopLogprobs:
    if len(rows or ()) != count:
        raise ResponseLost(f"likely tokens of {count} places were asked for and {len(rows or ())} came")
    return tuple(tuple(read_logprob(entry[0]) for entry in row) for row in rows or ())


def is_aborted(body: object) -> bool:
    """Returns whether a reply, complete or not, says that the request was aborted."""
    meta = body.get("meta_info", {}) if isinstance(body, dict) else {}
    finish = meta.get("finish_reason") if isinstance(meta, dict) else None
    return isinstance(finish, dict) and finish.get("type") == "abort"


def _parse_finish(finish: FinishJson) -> EndReason:
    if finish["type"] == "stop":
        if finish.get("matched") == _NAN_STOP:
            raise ResponseLost("the server's model produced something that is not a number")
        return "eos" if isinstance(finish.get("matched"), int) else "stop"
    if finish["type"] == "length":
        return "length"
    if finish["type"] == "abort":
        return "abort"
    raise ValueError(f"unknown finish_reason {shorten(finish['type'])}")
