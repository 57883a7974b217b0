"""Sends one generation to OpenAI-compatible servers, and goes on behind the text that has come where one is lost."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from decoding.core import GenerationRequest, SamplingParams
from reason.engines.http.errors import ReplyBrokenOff, ReplyTimeout
from reason.engines.http.in_flight import InFlightRequest
from reason.engines.http.stats import Arrivals
from reason.engines.openai_api.response import CompletionResponse, RequestedText, find_missing_tags, parse_completion
from reason.engines.openai_api.server import OpenAIServer
from reason.engines.openai_api.settings import OpenAISettings
from reason.engines.openai_api.streaming import CompletionStream
from reason.engines.openai_api.text_codec import TextCodec
from reason.models.byte_tokenizer import parse_conversation

log = logging.getLogger(__name__)

_ODD = 0x9E3779B97F4A7C15  # spreads consecutive numbers over all seeds


class CompletionCall:
    """One generation, sent as often as it takes.

    settings       of its servers; long generations are streamed (`stream_from_tokens`)
    streams_steps  whether generations with stop strings are streamed, too: the servers do not name what ended a text
    arrivals       counts the tokens of streams as they arrive

    Sent again after a loss, it gives the text that has come to the server to continue, and asks for the rest. These
    servers draw noise in the order of their draws, so the rest is sampled with a seed of its own: the first one would
    repeat the noise of the beginning. Where a server cannot continue a text (a chat without `prefill`), for a text that
    follows a JSON schema and behind a thought that was sent apart, the generation begins anew.
    """

    def __init__(
        self,
        request: GenerationRequest,
        *,
        settings: OpenAISettings,
        codec: TextCodec,
        streams_steps: bool,
        arrivals: Arrivals,
    ) -> None:
        self._request, self._settings, self._codec, self._arrivals = request, settings, codec, arrivals
        self._format = settings.request_format
        self._text, params = codec.decode_prefix(request.prefix), request.params
        # tool calls come in whole replies; there it makes no difference what ended the text
        wants_stream = settings.streams(params.max_tokens) or (bool(params.stop) and streams_steps)
        self._is_streamed = wants_stream and not self._format.has_field(self._text, "tools")
        is_long = settings.streams(params.max_tokens)  # a step costs little, and begins anew
        has_schema = request.json_schema is not None or self._format.has_field(self._text, "response_format")
        self._can_resume = is_long and settings.continues_text and not has_schema
        self.received: CompletionResponse | None = None

    async def send(self, server: OpenAIServer, in_flight: InFlightRequest) -> CompletionResponse:
        """Returns the whole reply, with what came before. Raises: a TransientError, RequestRejected, ..."""
        received, request = self._take_received(), self._request
        max_tokens = request.params.max_tokens - self._count_tokens(received)
        if received is not None and max_tokens <= 0:
            return replace(received, end_cause="length")  # only the end of the reply was lost
        text = self._text if received is None else self._text + received.text
        seed = request.seed if received is None else request.seed + _ODD * len(received.text)
        response = await self._send_rest(server, in_flight, text, replace(request.params, max_tokens=max_tokens), seed)
        return response if received is None else received.extend(response, request.params.stop)

    async def _send_rest(
        self, server: OpenAIServer, in_flight: InFlightRequest, text: str, params: SamplingParams, seed: int
    ) -> CompletionResponse:
        """Returns the reply to a request to continue `text`; keeps what comes of a stream."""
        request, path = self._request, self._format.path
        prompt_bytes, tags = len(text.encode(errors="replace")), self._find_tags(text)
        requested = RequestedText(params.stop, params.max_tokens, prompt_bytes, tags)
        timeout_s = self._settings.find_time_limit(params.max_tokens)
        body = self._format.build_body(
            text,
            params,
            seed,
            stream=self._is_streamed,
            num_top=request.num_top,
            json_schema=request.json_schema,
        )
        if not self._is_streamed:
            return parse_completion(await server.request_completion(path, body, timeout_s=timeout_s), requested)
        stream, earlier = _CountedStream(requested, self._arrivals), self.received
        try:
            return await server.stream_completion(path, body, stream, timeout_s=timeout_s)
        except (ReplyBrokenOff, ReplyTimeout, asyncio.CancelledError):  # what else ends a reply makes it incredible
            later = stream.build_partial()
            if later is not None:
                later = server.hide_key(later)
                self.received = later if earlier is None else earlier.extend(later, ())
                # a text that is thrown away is no progress: a server that never ends one would be asked for ever
                in_flight.num_received += (later.tokens or 0) if self._continues(later) else 0
            raise

    def _find_tags(self, text: str) -> tuple[str, str] | None:
        """Returns the tags around a thought that is sent apart behind `text`, without those that its answer has."""
        tags, parsed = self._settings.tag_pair, parse_conversation(text) if self._format.chat else None
        return tags if tags is None or parsed is None else find_missing_tags(parsed[1], tags)

    def _take_received(self) -> CompletionResponse | None:
        """Returns what this attempt goes on behind; None where it begins anew."""
        received = self.received
        if received is None:
            return None
        if not self._continues(received):
            self._arrivals.add(-self._arrivals.count)
            self.received = None
            return None
        count = self._count_tokens(received)
        log.warning("a generation goes on behind its %d tokens; the rest is sampled with other noise", count)
        self._arrivals.stats.record_resumed(count)
        return received

    def _continues(self, received: CompletionResponse) -> bool:
        """Returns whether a server can go on behind what has come."""
        return self._can_resume and not received.has_thought_apart and bool(received.text)

    def _count_tokens(self, received: CompletionResponse | None) -> int:
        """Returns how many of the requested tokens a text took, by the events in which it came."""
        return 0 if received is None else received.tokens or 0


class _CountedStream(CompletionStream):
    """A stream whose tokens are counted as they arrive."""

    def __init__(self, requested: RequestedText, arrivals: Arrivals) -> None:
        super().__init__(requested)
        self._arrivals = arrivals

    def add_event(self, event: object) -> bool:
        """See `CompletionStream`."""
        before = self.num_events
        is_end = super().add_event(event)
        self._arrivals.add(self.num_events - before)
        return is_end
