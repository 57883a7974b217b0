"""The engine made of servers: sends every request somewhere, until an answer has come or none can."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import httpx2
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from decoding.core import FinishReason, Generation, GenerationRequest, OversizedRequest, Spent
from decoding.stopping import StopRule
from reason.loop import LoopThread
from reason.remote.faults import Busy, Lost, NoServer, Passing, Refused, Unreachable
from reason.remote.introduction import Facts, meet
from reason.remote.server import Server
from reason.remote.stats import RemoteStats
from reason.remote.wire import Reason, Reply, generate_body, logprobs_of, read_body, reply_of
from reason.remote.workers import Worker, Workers

T = TypeVar("T")
log = logging.getLogger(__name__)

_FINISH: dict[Reason, FinishReason] = {"stop": "stop", "eos": "eos", "length": "length", "abort": "deadline"}
_GRACE_S = 2.0  # how long an aborted request may take to come back with what it has


@dataclass
class _Errand:
    """A request under way. `worker` is where it is now; `dark_since` when it found no server, and has not since."""

    request: GenerationRequest
    rid: str = ""
    worker: Worker | None = None
    late: bool = False
    losses: int = 0
    dark_since: float | None = None
    began: float = field(default_factory=time.monotonic)


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
        self._patience_s, self._losses = patience_s, losses
        # Connections are not counted: `most` says how many there are. Idle ones go before a server closes them.
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(request_timeout_s, connect=10.0, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        )
        servers = [Server(url, self._http) for url in urls]
        self._workers = Workers(servers, most=most, rest_s=rest_s)
        self._stats = RemoteStats()
        self._loop = LoopThread()
        self._name, self._numbers = uuid.uuid4().hex[:12], itertools.count()
        self._running: set[asyncio.Task[Any]] = set()
        self._aside: set[asyncio.Task[None]] = set()
        self._closed = False
        self._backoff = wait_random_exponential(multiplier=0.1, max=2.0)
        try:
            met = self._loop.run(_together([meet(server, tokenizer, vocab_size) for server in servers]))
        except BaseException:
            self.close()
            raise
        self._facts = Facts.common(met)
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
        await asyncio.gather(*self._aside, return_exceptions=True)
        await self._http.aclose()

    async def _all(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await _together([self._run(_Errand(request)) for request in requests])
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

    async def _run(self, errand: _Errand) -> Generation:
        self._stats.came()
        try:
            reply = await self._in_time(errand)
        finally:
            self._stats.left()
        generation = self._generation(errand, reply)
        self._stats.charge(generation.spent)
        return generation

    async def _in_time(self, errand: _Errand) -> Reply | None:
        """The reply, at the deadline with what there is by then; None if that is nothing."""
        deadline = errand.request.deadline
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return None
        work = asyncio.create_task(self._answer(errand))
        try:
            await asyncio.wait({work}, timeout=left)
            if not work.done():
                errand.late = True
                if errand.worker is not None:
                    self._abort(errand.worker, errand.rid)
                    await asyncio.wait({work}, timeout=_GRACE_S)
            return work.result() if work.done() else None
        except Passing:
            if errand.late:
                return None
            raise
        finally:
            work.cancel()
            await asyncio.wait({work})  # so that what it says aside is on its way

    async def _answer(self, errand: _Errand) -> Reply:
        """Tries until there is an answer. Raises: NoServer, Refused, OversizedRequest, or the last fault when late."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Passing), wait=self._pause, stop=lambda _: errand.late, reraise=True
        )
        reply: Reply = await retrying(self._attempt, errand)
        return reply

    async def _attempt(self, errand: _Errand) -> Reply:
        try:
            reply = await self._at(self._workers.pick(errand.request.group), errand)
        except Busy:
            self._stats.full += 1
            errand.dark_since = None
            raise
        except Unreachable as fault:
            errand.dark_since = errand.dark_since or time.monotonic()
            if time.monotonic() - errand.dark_since > self._patience_s:
                raise NoServer(f"{fault}; gave up after {self._patience_s:g} s") from fault
            raise
        except Lost as fault:
            self._stats.reissued += 1
            errand.losses, errand.dark_since = errand.losses + 1, None
            if errand.losses >= self._losses:
                raise NoServer(f"{fault}; {errand.losses} servers were lost over this request") from fault
            raise
        return reply

    async def _at(self, worker: Worker, errand: _Errand) -> Reply:
        """The answer of this server, once it has room."""
        worker.in_flight += 1
        try:
            async with worker.room:
                if not self._workers.up(worker):  # it failed while this one waited
                    raise Unreachable(f"{worker.server.url} failed")
                return await self._with(worker, errand)
        finally:
            worker.in_flight -= 1

    async def _with(self, worker: Worker, errand: _Errand) -> Reply:
        errand.worker, errand.rid = worker, f"{self._name}-{next(self._numbers)}"
        self._stats.sent(True)
        try:
            body = generate_body(errand.request, errand.rid, self._max_tokens(errand.request))
            reply = reply_of(await worker.server.generate(body))
            if reply.reason == "abort" and not errand.late:
                raise Lost(f"{worker.server.url} aborted a request that nobody had taken back")
            return await self._original(worker, errand, reply)
        except Unreachable:
            self._workers.failed(worker)
            raise
        except Lost:
            self._workers.failed(worker)
            self._abort(worker, errand.rid)  # it may only hang
            raise
        except asyncio.CancelledError:
            self._abort(worker, errand.rid)
            raise
        finally:
            errand.worker = None
            self._stats.sent(False)

    async def _original(self, worker: Worker, errand: _Errand, reply: Reply) -> Reply:
        """The reply with log-probabilities at temperature 1. Where the server tells those after temperature, it is made
        to read what it wrote: one forward pass, the prefix out of its cache."""
        request = errand.request
        if not (self._reads_again(request) and reply.tokens):
            return reply
        errand.rid = f"{self._name}-{next(self._numbers)}"
        body = read_body(request.prefix + reply.tokens, len(request.prefix), errand.rid)
        return replace(reply, logprobs=logprobs_of(await worker.server.generate(body), len(reply.tokens)))

    def _reads_again(self, request: GenerationRequest) -> bool:
        return not self._facts.original_logprobs and request.params.temperature not in (0, 1)

    def _max_tokens(self, request: GenerationRequest) -> int:
        """How many tokens to ask for: what will be read again must fit what a server reads."""
        most, readable = request.params.max_tokens, self._facts.readable
        if readable is None or not self._reads_again(request):
            return most
        return max(1, min(most, readable - len(request.prefix)))

    def _pause(self, state: RetryCallState) -> float:
        """No time after a loss, where another server may be asked at once."""
        lost = state.outcome is not None and isinstance(state.outcome.exception(), Lost)
        return 0.0 if lost else self._backoff(state)

    def _abort(self, worker: Worker, rid: str) -> None:
        """Tells the server, aside: nobody waits for what comes of it."""
        self._stats.aborted += 1
        task = asyncio.create_task(_told(worker.server, rid))
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    def _generation(self, errand: _Errand, reply: Reply | None) -> Generation:
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


async def _told(server: Server, rid: str) -> None:
    with suppress(Passing, Refused):  # then it notices by itself that nobody listens, after a few seconds
        await server.abort(rid)


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in order. Raises: the first error, after cancelling the rest."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
