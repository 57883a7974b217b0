"""Probes an SGLang server once, before the first request: whether it serves our model, and what it can do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict, cast

from decoding.sglang_plugin import COUPLED_ALGORITHM
from decoding.validation import shorten
from reason.engines.http.errors import RequestRejected, ResponseLost, TransientError, treat_as_lost
from reason.engines.http.masking import to_one_line
from reason.engines.http.plausible import read_count, read_logprob
from reason.engines.sglang_client.server import SGLangServer
from reason.engines.sglang_client.wire import GenerateJson, parse_generate_response

_MAX_COMPARED = 2048  # ids whose texts are compared, spread over the vocabulary
_MAX_LIMIT, _MAX_NAME = 2**40, 100


class VocabularyTokenizer(Protocol):
    """The part of a tokenizer that a server's vocabulary is compared with."""

    def get_vocab(self) -> dict[str, int]: ...
    def decode(self, ids: list[int], /, *, skip_special_tokens: bool) -> str: ...


class _ModelInfoJson(TypedDict, total=False):
    is_generation: bool
    model_path: str
    served_model_name: str


class _ServerInfoJson(TypedDict, total=False):
    version: str
    context_length: int | None
    max_total_num_tokens: int | None
    max_req_input_len: int | None
    enable_deterministic_inference: bool
    speculative_algorithm: str | None
    incremental_streaming_output: bool


@dataclass(frozen=True)
class ServerCapabilities:
    """What an SGLang server reports and shows of itself.

    version                of SGLang
    max_total_tokens       limit on prefix and generation together; None if it does not report one
    max_input_tokens       limit on the prefix; None if it does not report one
    has_original_logprobs  whether log-probabilities are those before temperature
    honors_seeds           whether a request's seed decides its tokens, by their positions: those behind a place where a
                           generation is taken up again are the same, too
    streams_increments     whether each event of a stream has the new tokens only
    """

    version: str
    max_total_tokens: int | None
    max_input_tokens: int | None
    has_original_logprobs: bool
    honors_seeds: bool
    streams_increments: bool = False

    @classmethod
    def common_to(cls, servers: Sequence[ServerCapabilities]) -> ServerCapabilities:
        """Returns what holds for all servers.

        >>> first, second = ServerCapabilities("1", 99, 90, True, True), ServerCapabilities("2", None, 80, True, False)
        >>> both = ServerCapabilities.common_to([first, second])
        >>> both.version, both.max_total_tokens, both.max_input_tokens, both.has_original_logprobs, both.honors_seeds
        ('1, 2', 99, 80, True, False)
        """
        return cls(
            ", ".join(sorted({server.version for server in servers})),
            _min_known(server.max_total_tokens for server in servers),
            _min_known(server.max_input_tokens for server in servers),
            all(server.has_original_logprobs for server in servers),
            all(server.honors_seeds for server in servers),
            all(server.streams_increments for server in servers),
        )


async def probe_server(
    server: SGLangServer, tokenizer: VocabularyTokenizer | None, vocab_size: int
) -> ServerCapabilities:
    """Queries `/model_info` and `/server_info` and checks model and vocabulary; `tokenizer` None compares nothing.

    Raises: ConnectionError if the server does not answer, ValueError if it does not serve this model, in one sentence.
    """
    try:
        with server.name_in_errors():
            model = await _query_model_info(server)
            if not model.get("is_generation"):
                name = to_one_line(str(model.get("model_path")), _MAX_NAME)
                raise ValueError(f"{server.url} does not generate text (it serves {name})")
            info = await _query_server_info(server)
            if tokenizer is not None:
                name = to_one_line(str(model.get("served_model_name")), _MAX_NAME)
                await _compare_vocabulary(server, name, tokenizer)
            has_original_logprobs = await _returns_original_logprobs(server, vocab_size)
    except TransientError as error:
        raise ConnectionError(f"{error}; is the server up? /health tells") from error
    except RequestRejected as error:
        raise ValueError(f"not a server of this model: {error}") from error
    is_seeded = info.get("speculative_algorithm") == COUPLED_ALGORITHM  # samples with the request's seed
    return ServerCapabilities(
        version=to_one_line(str(info.get("version", "unknown")), _MAX_NAME),
        max_total_tokens=_min_known((_limit_of(info, "context_length"), _limit_of(info, "max_total_num_tokens"))),
        max_input_tokens=_limit_of(info, "max_req_input_len"),
        has_original_logprobs=has_original_logprobs,
        honors_seeds=bool(info.get("enable_deterministic_inference")) or is_seeded,
        streams_increments=bool(info.get("incremental_streaming_output")),
    )


def _limit_of(info: _ServerInfoJson, name: str) -> int | None:
    """Returns a limit that the server reports; None where it is none."""
    return read_count(cast(Mapping[str, object], info).get(name), _MAX_LIMIT) or None


def _min_known(limits: Iterable[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


async def _query_model_info(server: SGLangServer) -> _ModelInfoJson:
    try:
        reply = await server.query("GET", "/model_info")
    except RequestRejected:  # a router knows only the older name
        reply = await server.query("GET", "/get_model_info")
    if not isinstance(reply, Mapping):
        raise ResponseLost(f"{server.url} does not describe its model")
    return cast(_ModelInfoJson, reply)


async def _query_server_info(server: SGLangServer) -> _ServerInfoJson:
    try:
        reply = await server.query("GET", "/server_info")
    except RequestRejected:  # a router does not pass it on
        return {}
    return cast(_ServerInfoJson, reply) if isinstance(reply, Mapping) else {}


async def _compare_vocabulary(server: SGLangServer, model: str, tokenizer: VocabularyTokenizer) -> None:
    """Raises ValueError naming an id whose text differs at the server."""
    size = max(tokenizer.get_vocab().values()) + 1
    ids = sorted({*range(0, size, math.ceil(size / _MAX_COMPARED)), size - 1})
    try:
        body = {"model": model, "tokens": [[i] for i in ids], "skip_special_tokens": False}
        reply = await server.query("POST", "/v1/detokenize", body)
    except RequestRejected as error:
        raise ValueError(f"{server.url} does not tell its vocabulary, so it cannot be compared: {error}") from error
    with treat_as_lost("a list of texts"):
        their_texts = [*cast(Mapping[str, Sequence[str]], reply)["text"]]
    if len(their_texts) != len(ids):
        raise ResponseLost(f"{server.url} decoded {len(their_texts)} of {len(ids)} tokens")
    for i, their_text in zip(ids, their_texts, strict=True):
        our_text = tokenizer.decode([i], skip_special_tokens=False)
        if our_text != their_text:
            raise ValueError(
                f"{server.url} serves {model}, whose vocabulary is another one than that of model.path: "
                f"id {i} is {shorten(their_text)} there and {our_text!r} here"
            )


async def _returns_original_logprobs(server: SGLangServer, vocab_size: int) -> bool:
    """Returns whether the gap between the best two tokens is the same at two temperatures.

    Costs two generated tokens of one forward pass each.
    """
    gaps = []
    for temperature in (1.0, 0.5):
        body = {
            "input_ids": [0],
            "sampling_params": {
                "max_new_tokens": 1,
                "temperature": temperature,
                # A bias of 0 changes nothing, but a server whose vocabulary is smaller than ours rejects the id.
                "logit_bias": {str(vocab_size - 1): 0.0},
            },
            "return_logprob": True,
            "top_logprobs_num": 2,
        }
        reply = await server.generate(body)
        parse_generate_response(reply, vocab_size=vocab_size, max_tokens=1, prefix_length=1)
        with treat_as_lost("one with two log-probabilities"):
            entries = cast(GenerateJson, reply)["meta_info"]["output_top_logprobs"][0]
            first, second = (read_logprob(entry[0]) for entry in entries)
        gaps.append(first - second)
    return math.isclose(gaps[0], gaps[1], rel_tol=0.1)
