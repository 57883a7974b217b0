"""One errand on its way: sent, sent again, taken back, until there is an answer or there will be none."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from reason.remote.faults import Busy, Lost, NoServer, Passing, Refused, Unreachable
from reason.remote.server import Server
from reason.remote.stats import RemoteStats
from reason.remote.workers import Worker, Workers

T = TypeVar("T")

_GRACE_S = 2.0  # how long an aborted request may take to come back with what it has


@dataclass
class Errand(Generic[T]):
    """Something wanted of a server, under way.

    ask         gets it there, with requests named by `rename`; called again, elsewhere, after a fault
    group       the problem it belongs to
    deadline    when to take it back, by the monotonic clock; None for never
    rid         the name of the request that is there now, for taking it back
    worker      where it is now
    late        it was taken back
    dark_since  when it found no server, and has not since
    """

    ask: Callable[[Server, Errand[T]], Awaitable[T]]
    group: str = ""
    deadline: float | None = None
    rid: str = ""
    worker: Worker | None = None
    late: bool = False
    losses: int = 0
    dark_since: float | None = None
    began: float = field(default_factory=time.monotonic)

    def rename(self) -> str:
        """A name for the next request. *Mutates* it."""
        self.rid = uuid.uuid4().hex
        return self.rid


class Post:
    """Carries errands to workers and back. Lives on one event loop.

    patience_s   how long an errand waits while no server answers
    losses       servers that an errand may lose before it is held to be the reason
    """

    def __init__(self, workers: Workers, stats: RemoteStats, *, patience_s: float, losses: int) -> None:
        self._workers, self._stats = workers, stats
        self._patience_s, self._losses = patience_s, losses
        self._backoff = wait_random_exponential(multiplier=0.1, max=2.0)
        self._aside: set[asyncio.Task[None]] = set()

    async def settle(self) -> None:
        """Waits for what is being said aside."""
        await asyncio.gather(*self._aside, return_exceptions=True)

    async def reply(self, errand: Errand[T]) -> T | None:
        """The reply, at the deadline with what there is by then; None if that is nothing."""
        self._stats.came()
        try:
            return await self._reply(errand)
        finally:
            self._stats.left()

    async def _reply(self, errand: Errand[T]) -> T | None:
        left = None if errand.deadline is None else errand.deadline - time.monotonic()
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

    async def _answer(self, errand: Errand[T]) -> T:
        """Tries until there is an answer. Raises: NoServer, Refused, OversizedRequest, or the last fault when late."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Passing), wait=self._pause, stop=lambda _: errand.late, reraise=True
        )
        reply: T = await retrying(self._attempt, errand)
        return reply

    async def _attempt(self, errand: Errand[T]) -> T:
        try:
            reply = await self._at(self._workers.pick(errand.group), errand)
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

    async def _at(self, worker: Worker, errand: Errand[T]) -> T:
        """The answer of this server, once it has room."""
        worker.in_flight += 1
        try:
            async with worker.room:
                if not self._workers.up(worker):  # it failed while this one waited
                    raise Unreachable(f"{worker.server.url} failed")
                return await self._with(worker, errand)
        finally:
            worker.in_flight -= 1

    async def _with(self, worker: Worker, errand: Errand[T]) -> T:
        errand.worker = worker
        self._stats.sent(True)
        try:
            return await errand.ask(worker.server, errand)
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


async def _told(server: Server, rid: str) -> None:
    with suppress(Passing, Refused):  # then it notices by itself that nobody listens, after a few seconds
        await server.abort(rid)
