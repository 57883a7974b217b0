"""The engine made of SGLang servers: sends branches as token ids and turns the replies into generations."""

from __future__ import annotations

import logging
from functools import partial

from decoding.core import FinishReason, Generation, GenerationRequest, Usage
from decoding.stopping import StopRule
from reason.engines.http.engine import HttpEngine, empty_generation
from reason.engines.http.top_logprobs import stack_rows
from reason.engines.sglang_client.capabilities import ServerCapabilities, VocabularyTokenizer, probe_server
from reason.engines.sglang_client.dispatcher import AbortableRequest, Dispatcher
from reason.engines.sglang_client.generate_call import GenerateCall
from reason.engines.sglang_client.wire import EndReason, GenerateResponse

log = logging.getLogger(__name__)

_FINISH: dict[EndReason, FinishReason] = {"stop": "stop", "eos": "eos", "length": "length", "abort": "deadline"}


class SGLangEngine(HttpEngine):
    """Implements `core.Engine` over SGLang servers.

    dispatcher  client of servers that all serve the model, or of a router in front of them; closed with the engine
    stop_rule   ends generations as the local engine does; the servers' own stops only save them work
    vocab_size  ids from here on would crash a server and are not sent
    tokenizer   its vocabulary is compared with the servers'; None compares nothing

    Raises: ValueError or ConnectionError where a server does not answer or does not serve this model.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        stop_rule: StopRule,
        vocab_size: int,
        tokenizer: VocabularyTokenizer | None = None,
    ) -> None:
        super().__init__(dispatcher.session, dispatcher.stats)
        self._dispatcher, self._stop_rule, self._vocab_size = dispatcher, stop_rule, vocab_size
        probe = partial(probe_server, tokenizer=tokenizer, vocab_size=vocab_size)
        self.capabilities = ServerCapabilities.common_to(dispatcher.probe_servers(probe))
        if not self.capabilities.honors_seeds:
            log.warning("%s: sampled tokens do not depend on the seed and will not repeat", ", ".join(dispatcher.urls))

    def _validate_content(self, request: GenerationRequest) -> None:
        for token in (*request.prefix, *request.params.stop_token_ids):
            if not 0 <= token < self._vocab_size:
                raise ValueError(f"token id {token} is outside the model's vocabulary of {self._vocab_size}")

    def _max_total_tokens(self) -> int | None:
        return self.capabilities.max_total_tokens

    async def _generate_one(self, request: GenerationRequest) -> Generation:
        with self._stats.track_arrivals() as arrivals:
            call = GenerateCall(
                request,
                capabilities=self.capabilities,
                vocab_size=self._vocab_size,
                settings=self._dispatcher.settings,
                stop_rule=self._stop_rule,
                arrivals=arrivals,
            )
            in_flight = AbortableRequest(send=call, problem=request.group, deadline=request.deadline)
            response = await self._dispatcher.dispatch(in_flight) or call.find_partial()
            if response is None:
                return empty_generation(request, in_flight)
            return self._build_generation(request, response, in_flight.elapsed_s)

    def _build_generation(self, request: GenerationRequest, response: GenerateResponse, seconds: float) -> Generation:
        # The server ended the text by its own rules; ours decides again, so that all engines cut at the same token.
        length, reason = self._stop_rule.find_end(response.tokens, len(response.tokens), request.params)
        forwards = min(response.forwards, length)
        top_logprobs = entropies = None
        if request.num_top:
            top_logprobs, entropies = stack_rows(response.top_logprobs[:length], request.num_top)
        return Generation(
            tokens=response.tokens[:length],
            logprobs=response.logprobs[:length],
            finish=reason or _FINISH[response.reason],
            usage=Usage(
                calls=1,
                tokens=length,
                prompt_tokens=len(request.prefix),
                cached_tokens=response.cached_tokens,
                forwards=forwards,
                drafted=response.drafted,
                accepted=length - forwards,
                seconds=seconds,
            ),
            top_logprobs=top_logprobs,
            entropies=entropies,
        )
