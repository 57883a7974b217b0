"""The engine made of servers: checks requests, has them carried there, and makes generations of what comes back."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from decoding.core import FinishReason, Generation, GenerationRequest, OversizedRequest, Spent
from decoding.stopping import StopRule
from reason.remote.client import Client
from reason.remote.introduction import Facts, meet
from reason.remote.post import Errand, Post
from reason.remote.server import Server
from reason.remote.wire import Reason, Reply
from reason.remote.workers import Workers

log = logging.getLogger(__name__)

_FINISH: dict[Reason, FinishReason] = {"stop": "stop", "eos": "eos", "length": "length", "abort": "deadline"}


class RemoteEngine(Client):
    """Implements `core.Engine` over SGLang servers.

    urls               of servers that all serve the model, or of a router in front of them
    stop_rule          ends generations as every engine of ours does; the servers' own stops only save them work
    vocab_size         ids from here on would kill a server and are not sent
    tokenizer          what the servers' is compared with; None compares nothing
    request_timeout_s  a server that takes longer over one request hangs
    patience_s         how long to wait while no server answers
    most               requests that one server has at once; the others wait here
    losses             servers that one request may lose before it is held to be the reason

    Raises: ValueError or ConnectionError where a server is not what is needed, or not there.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        stop_rule: StopRule,
        vocab_size: int,
        tokenizer: Any = None,
        request_timeout_s: float = 600.0,
        patience_s: float = 120.0,
        losses: int = 3,
        most: int = 256,
        rest_s: float = 5.0,
    ) -> None:
        super().__init__(request_timeout_s)
        self._stop, self._vocab_size = stop_rule, vocab_size
        servers = [Server(url, self._http) for url in urls]
        self._facts = Facts.common(self._introduce([meet(server, tokenizer, vocab_size) for server in servers]))
        workers = Workers(servers, most=most, rest_s=rest_s)
        self._post = Post(workers, self._facts, self._stats, patience_s=patience_s, losses=losses)
        if not self._facts.seeded:
            log.warning("%s: what is sampled there does not depend on the seed and will not repeat", ", ".join(urls))

    @property
    def facts(self) -> Facts:
        """What the servers say of themselves; where they differ, what holds of all."""
        return self._facts

    async def _settle(self) -> None:
        await self._post.settle()

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

    async def _write(self, request: GenerationRequest) -> Generation:
        errand = Errand(request)
        return self._generation(errand, await self._post.reply(errand))

    def _generation(self, errand: Errand, reply: Reply | None) -> Generation:
        seconds, prefix = time.monotonic() - errand.began, errand.request.prefix
        if reply is None:
            spent = Spent(calls=1, prompt_tokens=len(prefix), seconds=seconds)
            return Generation(tokens=(), logprobs=(), finish="deadline", spent=spent)
        length, ended = self._stop.first_end(reply.tokens, len(reply.tokens), errand.request.params)
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
