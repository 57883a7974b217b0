"""Whether a server is one we can work with, and what it can do; asked once, before the first request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reason.engines.sglang_client.errors import Passing, Refused
from reason.engines.sglang_client.server import Server
from reason.engines.sglang_client.wire import reply_of

_SEEDED = "REASON"  # our plugin's algorithm that draws with the request's seed
_COMPARED = 2048  # ids whose texts are compared, spread over the vocabulary


@dataclass(frozen=True)
class Facts:
    """What a server says of itself.

    version            of SGLang
    tokens             prefix and generation together at most; None if it does not say
    readable           the longest prefix; None if it does not say
    original_logprobs  whether they are told before temperature
    seeded             whether a request's seed decides its tokens
    """

    version: str
    tokens: int | None
    readable: int | None
    original_logprobs: bool
    seeded: bool

    @classmethod
    def common(cls, facts: Sequence[Facts]) -> Facts:
        """What holds of all.

        >>> Facts.common([Facts("1", 99, 90, True, True), Facts("2", None, 80, True, False)])
        Facts(version='1, 2', tokens=99, readable=80, original_logprobs=True, seeded=False)
        """
        return cls(
            ", ".join(sorted({one.version for one in facts})),
            _least(one.tokens for one in facts),
            _least(one.readable for one in facts),
            all(one.original_logprobs for one in facts),
            all(one.seeded for one in facts),
        )


async def meet(server: Server, tokenizer: Any, vocab_size: int) -> Facts:
    """Asks a server who it is.

    Raises: ConnectionError if it does not answer, ValueError if it is not what is needed, in one sentence.
    """
    try:
        about = await _model_info(server)
        if not about.get("is_generation"):
            raise ValueError(f"{server.url} does not generate text (it serves {about.get('model_path')})")
        info = await _server_info(server)
        if tokenizer is not None:
            await _compare_vocabulary(server, str(about.get("served_model_name")), tokenizer)
        original = await _tells_original_logprobs(server, vocab_size)
    except Passing as fault:
        raise ConnectionError(f"{fault}; is the server up? /health tells") from fault
    except Refused as fault:
        raise ValueError(f"not a server of this model: {fault}") from fault
    tokens = _least(info.get(key) for key in ("context_length", "max_total_num_tokens"))
    seeded = bool(info.get("enable_deterministic_inference")) or info.get("speculative_algorithm") == _SEEDED
    return Facts(str(info.get("version", "unknown")), tokens, info.get("max_req_input_len"), original, seeded)


def _least(numbers: Iterable[int | None]) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


async def _model_info(server: Server) -> Any:
    try:
        return await server.notice("GET", "/model_info")
    except Refused:  # a router knows only the older name
        return await server.notice("GET", "/get_model_info")


async def _server_info(server: Server) -> Mapping[str, Any]:
    try:
        info = await server.notice("GET", "/server_info")
    except Refused:  # a router does not know what its servers are
        return {}
    return info if isinstance(info, Mapping) else {}


async def _compare_vocabulary(server: Server, model: str, tokenizer: Any) -> None:
    """Raises: ValueError naming an id that reads differently there."""
    size = max(tokenizer.get_vocab().values()) + 1
    ids = sorted({*range(0, size, math.ceil(size / _COMPARED)), size - 1})
    try:
        body = {"model": model, "tokens": [[i] for i in ids], "skip_special_tokens": False}
        theirs = (await server.notice("POST", "/v1/detokenize", body))["text"]
    except Refused as fault:
        raise ValueError(f"{server.url} does not tell its vocabulary, so it cannot be compared: {fault}") from fault
    for i, text in zip(ids, theirs, strict=True):
        ours = tokenizer.decode([i], skip_special_tokens=False)
        if ours != text:
            raise ValueError(
                f"{server.url} serves {model}, whose vocabulary is another one than that of model.path: "
                f"id {i} is {text!r} there and {ours!r} here"
            )


async def _tells_original_logprobs(server: Server, vocab_size: int) -> bool:
    """Two tokens of one forward pass each, at two temperatures: is the gap between the best two the same?

    The bias of 0 changes nothing and makes a server refuse whose vocabulary is smaller than ours.
    """
    gaps = []
    for temperature in (1.0, 0.5):
        body = {
            "input_ids": [0],
            "sampling_params": {
                "max_new_tokens": 1,
                "temperature": temperature,
                "logit_bias": {str(vocab_size - 1): 0.0},
            },
            "return_logprob": True,
            "top_logprobs_num": 2,
        }
        answer = await server.generate(body)
        reply_of(answer)
        first, second = (entry[0] for entry in answer["meta_info"]["output_top_logprobs"][0])
        gaps.append(first - second)
    return math.isclose(gaps[0], gaps[1], rel_tol=0.1)
