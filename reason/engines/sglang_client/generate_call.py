"""Sends one generation to SGLang servers, and goes on behind the tokens that have come where a server is lost."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from decoding.core import GenerationRequest, Tokens
from decoding.stopping import StopRule
from reason.engines.http.errors import ReplyBrokenOff, ReplyTimeout, ResponseLost
from reason.engines.http.settings import ServerSettings
from reason.engines.http.stats import Arrivals
from reason.engines.sglang_client.capabilities import ServerCapabilities
from reason.engines.sglang_client.dispatcher import AbortableRequest
from reason.engines.sglang_client.server import SGLangServer
from reason.engines.sglang_client.streaming import GenerateStream
from reason.engines.sglang_client.wire import (
    GenerateResponse,
    build_generate_body,
    build_prefill_body,
    parse_generate_response,
    parse_input_logprobs,
    parse_input_top_logprobs,
)

log = logging.getLogger(__name__)

_INTERVAL = 20  # tokens of an event: what a lost server takes with it at most, and little work for hundreds of streams
_MAX_REPEATED_INTERVAL, _REPEATS = 128, 128  # of a server whose every event repeats all tokens


class GenerateCall:
    """`AbortableRequest.send` of a generation: one /generate, and a prefill where log-probabilities are tempered.

    A long one is streamed (`ServerSettings.stream_from_tokens`). Called again after a loss, it sends the tokens that
    have come behind the prefix and asks for the rest. Where the seed decides tokens by their positions, the text is
    then what it would have been; elsewhere it is sampled anew from there, with the same distribution.
    A generation that follows a JSON schema begins anew: the server would match the rest alone against it.
    """

    def __init__(
        self,
        request: GenerationRequest,
        *,
        capabilities: ServerCapabilities,
        vocab_size: int,
        settings: ServerSettings,
        stop_rule: StopRule,
        arrivals: Arrivals,
    ) -> None:
        self._request, self._capabilities, self._vocab_size = request, capabilities, vocab_size
        self._settings, self._stop_rule, self._arrivals = settings, stop_rule, arrivals
        self._received: GenerateResponse | None = None
        self._whole: GenerateResponse | None = None  # all tokens are there, and the prefill is missing
        params = request.params
        self._is_streamed = settings.streams(params.max_tokens)
        self._can_resume = request.json_schema is None
        self._needs_prefill = not capabilities.has_original_logprobs and params.temperature not in (0, 1)

    async def __call__(self, server: SGLangServer, in_flight: AbortableRequest[GenerateResponse]) -> GenerateResponse:
        """Returns the whole reply, with what came before. Raises: a TransientError, RequestRejected."""
        if self._whole is not None:
            return await self._with_original_logprobs(server, in_flight, self._whole)
        received, max_tokens = self._take_received(), self._max_new_tokens()
        if received is not None and (end := self._find_end(received, max_tokens)) is not None:
            return await self._with_original_logprobs(server, in_flight, end)  # only the end of the reply was lost
        before: Tokens = () if received is None else received.tokens
        response = await self._generate_rest(server, in_flight, before, max_tokens - len(before))
        whole = response if received is None else received.extend(response)
        if response.reason == "abort" and not in_flight.is_expired:
            self._received = whole if whole.tokens and self._is_streamed else None  # a worker that stops
            raise ResponseLost(f"{server.url} aborted a request without being asked to")
        return await self._with_original_logprobs(server, in_flight, whole)

    def find_partial(self) -> GenerateResponse | None:
        """Returns what has come of a generation that will not be finished; None where that is nothing of use."""
        return None if self._needs_prefill else self._received

    async def _generate_rest(
        self,
        server: SGLangServer,
        in_flight: AbortableRequest[GenerateResponse],
        before: Tokens,
        max_tokens: int,
    ) -> GenerateResponse:
        """Returns the reply to a request for the tokens behind `before`; keeps what comes of a stream."""
        expected = {
            "vocab_size": self._vocab_size,
            "max_tokens": max_tokens,
            "prefix_length": len(self._request.prefix) + len(before),
            "num_top": self._request.num_top,
        }
        timeout_s, request_id = self._settings.find_time_limit(max_tokens), in_flight.renew_id()
        if not self._is_streamed:
            body = build_generate_body(self._request, request_id, max_tokens)
            return parse_generate_response(await server.generate(body, timeout_s=timeout_s), **expected)
        interval = self._find_interval(max_tokens)
        body = build_generate_body(self._request, request_id, max_tokens, received=before, stream_interval=interval)
        stream = _CountedStream(self._arrivals, **expected)
        earlier = self._received
        try:
            return await server.stream_generate(body, stream, timeout_s=timeout_s)
        except (ReplyBrokenOff, ReplyTimeout, asyncio.CancelledError):  # what else ends a reply makes it incredible
            later = stream.build_partial()
            if later is not None:
                self._received = later if earlier is None else earlier.extend(later)
                # what is thrown away is no progress
                in_flight.num_received += stream.num_tokens if self._can_resume else 0
            raise

    def _take_received(self) -> GenerateResponse | None:
        """Returns what this attempt goes on behind; None where it begins anew."""
        if self._received is None:
            return None
        if not self._can_resume:
            self._arrivals.add(-len(self._received.tokens))
            self._received = None
            return None
        log.warning(
            "a generation goes on behind its %d tokens%s",
            len(self._received.tokens),
            "" if self._capabilities.honors_seeds else "; the rest is sampled with other noise",
        )
        self._arrivals.stats.record_resumed(len(self._received.tokens))
        return self._received

    def _find_end(self, received: GenerateResponse, max_tokens: int) -> GenerateResponse | None:
        """Returns the whole reply where all of its tokens came; None where some are missing."""
        tokens = received.tokens
        length, reason = self._stop_rule.find_end(tokens, len(tokens), self._request.params)
        if reason is None and len(tokens) < max_tokens:
            return None
        del length  # the engine cuts there
        return replace(received, reason="length")

    def _find_interval(self, max_tokens: int) -> int:
        if self._capabilities.streams_increments:
            return _INTERVAL
        return min(_MAX_REPEATED_INTERVAL, max(_INTERVAL, max_tokens // _REPEATS))

    async def _with_original_logprobs(
        self, server: SGLangServer, in_flight: AbortableRequest[GenerateResponse], response: GenerateResponse
    ) -> GenerateResponse:
        """Returns the response with log-probabilities at temperature 1.

        A server that returns those after temperature prefills its own output: one forward pass, the prefix cached.
        """
        if not (self._needs_prefill and response.tokens):
            return response
        self._whole = response
        prefix, num_top, count = self._request.prefix, self._request.num_top, len(response.tokens)
        # From one token earlier: the first entry of the reply has no context and is null.
        body = build_prefill_body(prefix + response.tokens, len(prefix) - 1, in_flight.renew_id(), num_top)
        reply = await server.generate(body)
        top_logprobs = parse_input_top_logprobs(reply, count) if num_top else ()
        return replace(response, logprobs=parse_input_logprobs(reply, count), top_logprobs=top_logprobs)

    def _max_new_tokens(self) -> int:
        """Returns the tokens to generate: those that will be prefilled must fit the server's limit on inputs."""
        max_tokens, max_input = self._request.params.max_tokens, self._capabilities.max_input_tokens
        if max_input is None or not self._needs_prefill:
            return max_tokens
        return max(1, min(max_tokens, max_input - len(self._request.prefix)))


class _CountedStream(GenerateStream):
    """A stream whose tokens are counted as they arrive."""

    def __init__(
        self, arrivals: Arrivals, *, vocab_size: int, max_tokens: int, prefix_length: int, num_top: int
    ) -> None:
        super().__init__(vocab_size=vocab_size, max_tokens=max_tokens, prefix_length=prefix_length, num_top=num_top)
        self._arrivals = arrivals

    def add_event(self, event: object) -> bool:
        """See `GenerateStream`."""
        before = self.num_tokens
        is_end = super().add_event(event)
        self._arrivals.add(self.num_tokens - before)
        return is_end
