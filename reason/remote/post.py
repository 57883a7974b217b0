"""One request on its way: sent, sent again, taken back, until there is an answer or there will be none."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from decoding.core import GenerationRequest
from reason.remote import attempts
from reason.remote.attempts import Attempts
from reason.remote.faults import Lost, Passing, Refused, Unreachable
from reason.remote.introduction import Facts
from reason.remote.server import Server
from reason.remote.stats import RemoteStats
from reason.remote.wire import Reply, generate_body, logprobs_of, read_body, reply_of
from reason.remote.workers import Worker, Workers

_GRACE_S = 2.0  # how long an aborted request may take to come back with what it has


@dataclass
class Errand(attempts.Errand):
    """`worker` is where it is now, `rid` the name it has there."""

    rid: str = ""
    worker: Worker[Server] | None = None


class Post:
    """Carries errands to workers and back. Lives on one event loop. `Attempts` says what the numbers are."""

    def __init__(
        self, workers: Workers[Server], facts: Facts, stats: RemoteStats, *, patience_s: float, losses: int
    ) -> None:
        self._workers, self._facts, self._stats = workers, facts, stats
        self._name, self._numbers = uuid.uuid4().hex[:12], itertools.count()
        self._attempts = Attempts(workers, stats, patience_s=patience_s, losses=losses)
        self._aside: set[asyncio.Task[None]] = set()

    async def settle(self) -> None:
        """Waits for what is being said aside."""
        await asyncio.gather(*self._aside, return_exceptions=True)

    async def reply(self, errand: Errand) -> Reply | None:
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

    async def _answer(self, errand: Errand) -> Reply:
        """Tries until there is an answer. Raises: NoServer, Refused, OversizedRequest, or the last fault when late."""
        return await self._attempts.answer(errand, partial(self._with, errand))

    async def _with(self, errand: Errand, worker: Worker[Server]) -> Reply:
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

    async def _original(self, worker: Worker[Server], errand: Errand, reply: Reply) -> Reply:
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

    def _abort(self, worker: Worker[Server], rid: str) -> None:
        """Tells the server, aside: nobody waits for what comes of it."""
        self._stats.aborted += 1
        task = asyncio.create_task(_told(worker.server, rid))
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)


async def _told(server: Server, rid: str) -> None:
    with suppress(Passing, Refused):  # then it notices by itself that nobody listens, after a few seconds
        await server.abort(rid)
