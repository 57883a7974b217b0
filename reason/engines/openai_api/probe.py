"""Probes an OpenAI-compatible server once, before the first request, for what a search depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from decoding.core import OversizedRequest
from reason.engines.http.errors import ReplyTimeout, RequestRejected, ResponseLost, TransientError, treat_as_lost
from reason.engines.http.plausible import read_count
from reason.engines.openai_api.request_format import RequestFormat
from reason.engines.openai_api.response import RequestedText, names_end_cause, parse_usage
from reason.engines.openai_api.response_json import CompletionJson
from reason.engines.openai_api.server import OpenAIServer

_WORD, _STEP = "So", "So\n\n"
_MAX_WORD_TOKENS = 2  # tokens that `_WORD` may have
_PROBE = RequestedText(stop=(), max_tokens=1, prompt_bytes=len("?" + _STEP))
_MAX_CONTEXT = 2**31
_LIST_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class OpenAICapabilities:
    """What a server reports and shows of itself.

    max_total_tokens  limit on prompt and generation together; None if it does not report one
    names_end_cause   whether its replies tell a stop string from the end of a text
    """

    max_total_tokens: int | None
    names_end_cause: bool

    @classmethod
    def common_to(cls, servers: Sequence[OpenAICapabilities]) -> OpenAICapabilities:
        """Returns what holds for all servers.

        >>> OpenAICapabilities.common_to([OpenAICapabilities(None, True), OpenAICapabilities(99, False)])
        OpenAICapabilities(max_total_tokens=99, names_end_cause=False)
        """
        limits = [server.max_total_tokens for server in servers if server.max_total_tokens is not None]
        return cls(min(limits, default=None), all(server.names_end_cause for server in servers))


async def probe_completions(server: OpenAIServer, request_format: RequestFormat) -> OpenAICapabilities:
    """Requests one token, to learn whether the server takes such requests and names what ended a text.

    Chats without prefill need neither and generate no token.
    Raises: ConnectionError if the server does not answer, ValueError if it cannot be used, in one sentence.
    """
    try:
        with server.name_in_errors():
            limit = await _query_context_length(server, request_format.model)
            if request_format.chat and not request_format.prefill:
                return OpenAICapabilities(limit, names_end_cause=True)
            if request_format.chat:
                await _require_prefill(server, request_format)
            reply = await server.request_completion(request_format.path, request_format.build_probe())
            return OpenAICapabilities(limit, names_end_cause(reply))
    except TransientError as error:
        raise ConnectionError(str(error)) from error
    except (RequestRejected, OversizedRequest) as error:
        hint = "; a server without /completions is used with engine.api=chat (model=served)"
        raise ValueError(f"{error}{'' if request_format.chat else hint}") from error


async def _query_context_length(server: OpenAIServer, model: str) -> int | None:
    """Returns the model's context length, which vLLM reports in its list of models; None where it is not there."""
    try:
        reply = await server.request_json("GET", "/models", timeout_s=_LIST_TIMEOUT_S)
    except ReplyTimeout:
        raise
    except (RequestRejected, ResponseLost):  # not every server has a list
        return None
    rows = reply.get("data") if isinstance(reply, Mapping) else None
    rows = rows if isinstance(rows, Sequence) else ()
    limits = [row.get("max_model_len") for row in rows if isinstance(row, Mapping) and row.get("id") == model]
    return next((limit for limit in limits if read_count(limit, _MAX_CONTEXT)), None)


async def _require_prefill(server: OpenAIServer, request_format: RequestFormat) -> None:
    """Raises ValueError where the server does not continue a begun answer exactly as it is.

    The length of the prompt shows it. A begun answer of one word adds that word where the answer is continued, and the
    template's text around two turns where a new one begins. A blank line adds nothing where the template trims answers.
    """
    lengths = []
    for answer in (None, _WORD, _STEP):
        reply = await server.request_completion(request_format.path, request_format.build_probe(answer))
        with treat_as_lost("a completion"):
            lengths.append(parse_usage(cast(CompletionJson, reply), _PROBE)["prompt_tokens"])
    empty, word, step = lengths
    if empty is None or word is None or step is None:
        raise ValueError(f"{server.url} does not count prompts, so it is unknown whether engine.prefill works there")
    if word - empty > _MAX_WORD_TOKENS:
        raise ValueError(f"{server.url} begins a new answer instead of continuing one; engine.prefill does not work")
    if step <= word:
        raise ValueError(
            f"{server.url} loses the blank line at the end of a step (its chat template trims answers); "
            "engine.prefill does not work with this model, engine.api=completions does"
        )
