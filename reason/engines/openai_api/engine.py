"""The engine made of OpenAI-compatible servers: decodes prefixes to text, sends it, and encodes the replies."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial

from decoding.core import FinishReason, Generation, GenerationRequest, Matrix, Tokens, Usage, Vector
from reason.engines.http.client import HttpSession
from reason.engines.http.engine import HttpEngine, empty_generation
from reason.engines.http.in_flight import InFlightRequest
from reason.engines.http.retry_policy import RetryPolicy
from reason.engines.http.server_pool import PooledServer, ServerPool
from reason.engines.http.stats import ClientStats
from reason.engines.http.top_logprobs import stack_rows
from reason.engines.openai_api.completion_call import CompletionCall
from reason.engines.openai_api.probe import OpenAICapabilities, probe_completions
from reason.engines.openai_api.response import CompletionResponse, EndCause
from reason.engines.openai_api.server import OpenAIServer
from reason.engines.openai_api.settings import OpenAISettings
from reason.engines.openai_api.text_codec import TextCodec
from reason.models.byte_tokenizer import ByteTokenizer
from reason.models.tokenizer import PretrainedTokenizer

log = logging.getLogger(__name__)


class OpenAIEngine(HttpEngine):
    """Implements `core.Engine` over OpenAI-compatible servers.

    A generation is one HTTP request with its own seed. Several samples in one request (`n`) would share the work on
    the prompt, which servers with a prefix cache share anyway; but one seed for all is not the seed of a branch, some
    servers return one sample whatever `n` is, and one failure would lose all.

    settings   servers and request format, adapted to their use, with `model` set
    tokenizer  encodes the replies; `ByteTokenizer` where the model's own is not here

    Raises: ValueError or ConnectionError where a server does not answer or cannot be used.
    """

    def __init__(self, settings: OpenAISettings, *, tokenizer: PretrainedTokenizer) -> None:
        stats, session = ClientStats(), HttpSession(settings.reply_limits, settings.api_key)
        super().__init__(session, stats)
        self._settings, self._format, self._codec = settings, settings.request_format, TextCodec(tokenizer)
        self._thought_tags = settings.tag_pair
        self._warnings: set[str] = set()
        self._has_tokenizer = not isinstance(tokenizer, ByteTokenizer)
        servers = [OpenAIServer(url, session.http) for url in settings.urls]
        probes = [probe_completions(server, self._format) for server in servers]
        self.capabilities = OpenAICapabilities.common_to(session.probe_all(probes))
        pool = ServerPool(servers, max_in_flight=settings.max_in_flight, cooldown_s=settings.cooldown_s)
        self._retry_policy = RetryPolicy(pool, stats, settings)
        log.warning("%s: %s", ", ".join(settings.urls), self._describe_limits())

    def _describe_limits(self) -> str:
        """Returns what this engine lacks against the local one, in one line."""
        limits = ["text in, text out: no hidden states, speculation is up to the server"]
        limits += [] if self._format.logprobs else ["no log-probabilities"]
        limits += [] if self._has_tokenizer else ["lengths in trees are bytes"]
        limits += [] if self.capabilities.names_end_cause else ["steps are streamed: replies do not name the end"]
        return "; ".join([*limits, "sampled text repeats as far as the server honors seeds"])

    def _validate_content(self, request: GenerationRequest) -> None:
        self._format.validate_params(request.params)
        self._format.build_prompt(self._codec.decode_prefix(request.prefix))

    def _max_total_tokens(self) -> int | None:
        return self.capabilities.max_total_tokens if self._has_tokenizer else None

    async def _generate_one(self, request: GenerationRequest) -> Generation:
        with self._stats.track_request(), self._stats.track_arrivals() as arrivals:
            call = CompletionCall(
                request,
                settings=self._settings,
                codec=self._codec,
                streams_steps=not self.capabilities.names_end_cause,
                arrivals=arrivals,
            )
            return await self._generate_until_deadline(request, call)

    async def _generate_until_deadline(self, request: GenerationRequest, call: CompletionCall) -> Generation:
        in_flight = InFlightRequest(request.group)
        timeout_s = None if request.deadline is None else request.deadline - time.monotonic()
        try:
            if timeout_s is not None and timeout_s <= 0:
                raise TimeoutError
            async with asyncio.timeout(timeout_s):
                response = await self._retry_policy.send_with_retries(
                    in_flight, partial(self._send_to, call, in_flight)
                )
        except TimeoutError:
            if call.received is None:
                return empty_generation(request, in_flight)
            response = call.received
            if response.end_cause == "unknown":
                return self._build_generation(request, response, in_flight.elapsed_s, finish="deadline")
        finish = _to_finish_reason(response.end_cause, bool(request.params.stop))
        return self._build_generation(request, response, in_flight.elapsed_s, finish=finish)

    async def _send_to(
        self, call: CompletionCall, in_flight: InFlightRequest, pooled: PooledServer[OpenAIServer]
    ) -> CompletionResponse:
        try:
            return await call.send(pooled.server, in_flight)
        except asyncio.CancelledError:
            self._stats.aborted += 1  # the closed connection tells the server
            raise

    def _build_generation(
        self, request: GenerationRequest, response: CompletionResponse, seconds: float, *, finish: FinishReason
    ) -> Generation:
        if response.has_dropped_thought:
            self._warn_once(
                "the server sends the model's thoughts apart, and they are dropped: model.thinking is not set; "
                "thinking@model.thinking=PRESET keeps them"
            )
        response = self._mark_dropped_thought(response, finish)
        tokens, num_known = self._encode_response(request.prefix, response, finish)
        top_logprobs, entropies = self._measure_tokens(request, response, num_known, len(tokens))
        num_tokens = len(tokens) if response.tokens is None else response.tokens
        prompt_tokens = len(request.prefix) if response.prompt_tokens is None else response.prompt_tokens
        return Generation(
            tokens=tokens,
            logprobs=tuple(logprob for _, logprob in response.token_logprobs[:num_known]),
            finish=finish,
            top_logprobs=top_logprobs,
            entropies=entropies,
            usage=Usage(
                calls=1,
                tokens=num_tokens,
                prompt_tokens=prompt_tokens,
                cached_tokens=min(response.cached_tokens, prompt_tokens),
                forwards=num_tokens,
                seconds=seconds,
            ),
        )

    def _mark_dropped_thought(self, response: CompletionResponse, finish: FinishReason) -> CompletionResponse:
        """Returns a response with an empty thought before its text, if it ended by itself and its thought was not sent.

        One that a limit cut may still be inside its thought.
        """
        tags, text = self._thought_tags, response.text
        if not self._settings.drops_thoughts or tags is None or finish != "eos" or not text.strip():
            return response
        if any(tag in text for tag in tags):
            return response
        self._warn_once(
            "the server sends answers without the model's thoughts and without tags: they are read as the text behind "
            "a thought that was not sent; engine.drops_thoughts=false reads them as thoughts that did not end"
        )
        return replace(response, text="".join(tags) + text)

    def _encode_response(
        self, prefix: Tokens, response: CompletionResponse, finish: FinishReason
    ) -> tuple[Tokens, int]:
        """Returns the ids of a response, with the end token where the text ended by itself, and how many are known.

        These are the first of the server's tokens, log-probabilities included: all, or none where the server's tokens
        are not tokens of this vocabulary one by one.
        """
        end = self._codec.end_tokens if finish == "eos" else ()
        if not response.token_logprobs:
            return self._codec.encode_reply(response.text, prefix) + end, 0
        pieces = _find_text_pieces(response)
        tokens = self._codec.encode_pieces(pieces, prefix)
        if tokens is None or "".join(pieces) != response.text:
            return self._codec.encode_reply(response.text, prefix) + end, 0
        # the next one, if there is one, is the end token
        tokens += end if len(response.token_logprobs) > len(pieces) else ()
        return tokens, len(tokens)

    def _measure_tokens(
        self, request: GenerationRequest, response: CompletionResponse, num_known: int, num_tokens: int
    ) -> tuple[Matrix | None, Vector | None]:
        """Returns `top_logprobs` and `entropies` of a generation; None, and a warning, where the reply has none."""
        if not request.num_top or not num_tokens:
            return None, None
        rows = response.top_logprobs[:num_known]
        if num_known < num_tokens or len(rows) < num_tokens:
            self._warn_once(
                "the server sends no log-probabilities of likely tokens, or of a text with other tokens than here (a "
                "thought that it sends apart); such solutions have no confidence"
            )
            return None, None
        fewest = min(map(len, rows))
        if fewest < request.num_top:
            self._warn_once(
                f"the server sends log-probabilities of {fewest} likely tokens, of {request.num_top} that were "
                "requested; confidences and entropies are those of the tokens that come"
            )
        return stack_rows(rows, request.num_top)

    def _warn_once(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.add(message)
            log.warning(message)


def _find_text_pieces(response: CompletionResponse) -> list[str]:
    """Returns the server's tokens that make up the text."""
    length, count = 0, 0
    for piece, _ in response.token_logprobs:
        if length == len(response.text) or length + len(piece) > len(response.text):
            break
        length, count = length + len(piece), count + 1
    return [piece for piece, _ in response.token_logprobs[:count]]


def _to_finish_reason(end_cause: EndCause, had_stop: bool) -> FinishReason:
    if end_cause == "unknown":  # of whole answers only, where it makes no difference
        return "stop" if had_stop else "eos"
    return end_cause
