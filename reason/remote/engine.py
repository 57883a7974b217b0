"""The engine made of servers: checks requests, has them carried there, and makes generations of what comes back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import httpx2

from decoding.core import FinishReason, Generation, GenerationRequest, OversizedRequest, Spent
from decoding.stopping import StopRule
from reason.loop import LoopThread
from reason.remote.introduction import Facts, meet
from reason.remote.post import Errand, Post
from reason.remote.server import Server
from reason.remote.stats import RemoteStats
from reason.remote.wire import Reason, Reply
from reason.remote.workers import Workers

T = TypeVar("T")
log = logging.getLogger(__name__)

_FINISH: dict[Reason, FinishReason] = {"stop": "stop", "eos": "eos", "length": "length", "abort": "deadline"}


class RemoteEngine:
    """Implements `core.Engine` over SGLang servers. May be called from any thread and from several event loops.

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
        self._stop, self._vocab_size = stop_rule, vocab_size
        # Connections are not counted: `most` says how many there are. Idle ones go before a server closes them.
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(request_timeout_s, connect=10.0, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        )
        servers = [Server(url, self._http) for url in urls]
        self._stats = RemoteStats()
        self._loop = LoopThread()
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False
        try:
            met = self._loop.run(_together([meet(server, tokenizer, vocab_size) for server in servers]))
        except BaseException:
            self._loop.run(self._http.aclose())
            self._loop.close()
            raise
        self._facts = Facts.common(met)
        workers = Workers(servers, most=most, rest_s=rest_s)
        self._post = Post(workers, self._facts, self._stats, patience_s=patience_s, losses=losses)
        if not self._facts.seeded:
            log.warning("%s: what is sampled there does not depend on the seed and will not repeat", ", ".join(urls))

    @property
    def stats(self) -> RemoteStats:
        """A snapshot; cheap, callable at any time."""
        snapshot = self._stats.snapshot()
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
        if self._closed:
            raise RuntimeError("the engine is closed")
        return await self._loop.arun(self._all(requests))

    def close(self) -> None:
        """Takes back what is with the servers and ends the client's thread. Calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            self._loop.run(self._end())
            self._loop.close()

    async def _end(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._post.settle()
        await self._http.aclose()

    async def _all(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await _together([self._run(Errand(request)) for request in requests])
        finally:
            self._running.discard(task)

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

    async def _run(self, errand: Errand) -> Generation:
        self._stats.came()
        try:
            reply = await self._post.reply(errand)
        finally:
            self._stats.left()
        generation = self._generation(errand, reply)
        self._stats.charge(generation.spent)
        return generation

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


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in order. Raises: the first error, after cancelling the rest."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
