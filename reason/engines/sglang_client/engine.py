"""The engine made of servers: checks requests, has them carried there, and makes generations of what comes back."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from decoding.core import FinishReason, Generation, GenerationRequest, OversizedRequest, Spent
from decoding.stopping import StopRule
from reason.engines.sglang_client.capabilities import Facts, meet
from reason.engines.sglang_client.client import Client
from reason.engines.sglang_client.dispatcher import Errand
from reason.engines.sglang_client.stats import RemoteStats
from reason.engines.sglang_client.wire import Reason, Reply
from reason.engines.sglang_client.writing import Writing

log = logging.getLogger(__name__)

_FINISH: dict[Reason, FinishReason] = {"stop": "stop", "eos": "eos", "length": "length", "abort": "deadline"}


class RemoteEngine:
    """Implements `core.Engine` over SGLang servers. May be called from any thread and from several event loops.

    client      to servers that all serve the model, or to a router in front of them; closed with the engine
    stop_rule   ends generations as every engine of ours does; the servers' own stops only save them work
    vocab_size  ids from here on would kill a server and are not sent
    tokenizer   what the servers' is compared with; None compares nothing

    Raises: ValueError or ConnectionError where a server is not what is needed, or not there.
    """

    def __init__(self, client: Client, *, stop_rule: StopRule, vocab_size: int, tokenizer: Any = None) -> None:
        self._client, self._stop, self._vocab_size = client, stop_rule, vocab_size
        self._facts = Facts.common(client.meet(partial(meet, tokenizer=tokenizer, vocab_size=vocab_size)))
        if not self._facts.seeded:
            log.warning(
                "%s: what is sampled there does not depend on the seed and will not repeat", ", ".join(client.urls)
            )

    @property
    def stats(self) -> RemoteStats:
        """A snapshot; cheap, callable at any time."""
        snapshot = self._client.stats.snapshot()
        assert isinstance(snapshot, RemoteStats)
        return snapshot

    @property
    def facts(self) -> Facts:
        """What the servers say of themselves; where they differ, what holds of all."""
        return self._facts

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation per request, in order. Cancelling takes all of them back from the servers.

        Raises: OversizedRequest or ValueError before anything is sent; NoServer; RuntimeError once closed.
        """
        for request in requests:
            self._validate(request)
        return await self._client.together([self._run(request) for request in requests])

    def close(self) -> None:
        """Takes back what is with the servers and ends the client's thread. Calling it twice is harmless."""
        self._client.close()

    def _validate(self, request: GenerationRequest) -> None:
        if request.hidden:
            raise ValueError("a server does not give hidden states; choose embedder=words")
        for token in (*request.prefix, *request.params.stop_token_ids):
            if not 0 <= token < self._vocab_size:
                raise ValueError(f"token id {token} is outside the model's vocabulary of {self._vocab_size}")
        total = len(request.prefix) + request.params.max_tokens
        if self._facts.tokens is not None and total > self._facts.tokens:
            asked = f"{len(request.prefix)} prefix tokens + max_tokens={request.params.max_tokens} = {total} tokens"
            raise OversizedRequest(f"{asked} exceed the servers' limit of {self._facts.tokens} tokens")

    async def _run(self, request: GenerationRequest) -> Generation:
        errand = Errand(ask=Writing(request, self._facts), group=request.group, deadline=request.deadline)
        reply = await self._client.reply(errand)
        generation = self._generation(request, reply, time.monotonic() - errand.began)
        self._client.stats.charge(generation.spent)
        return generation

    def _generation(self, request: GenerationRequest, reply: Reply | None, seconds: float) -> Generation:
        prefix = request.prefix
        if reply is None:
            spent = Spent(calls=1, prompt_tokens=len(prefix), seconds=seconds)
            return Generation(tokens=(), logprobs=(), finish="deadline", spent=spent)
        length, ended = self._stop.first_end(reply.tokens, len(reply.tokens), request.params)
        forwards = min(reply.forwards, length)
        return Generation(
            tokens=reply.tokens[:length],
            logprobs=reply.logprobs[:length],
            finish=ended or _FINISH[reply.reason],
            spent=Spent(
                calls=1,
                tokens=length,
                prompt_tokens=len(prefix),
                cached_tokens=reply.cached_tokens,
                forwards=forwards,
                drafted=reply.drafted,
                accepted=length - forwards,
                seconds=seconds,
            ),
        )
