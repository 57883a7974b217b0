"""One errand on its way: sent, sent again, taken back, until there is an answer or there will be none."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from reason.engines.sglang_client import retry_policy as attempts
from reason.engines.sglang_client.errors import Lost, Passing, Refused, Unreachable
from reason.engines.sglang_client.retry_policy import Attempts
from reason.engines.sglang_client.server import Server
from reason.engines.sglang_client.session_affinity import Worker, Workers
from reason.engines.sglang_client.stats import RemoteStats

T = TypeVar("T")

_GRACE_S = 2.0  # how long an aborted request may take to come back with what it has


@dataclass(kw_only=True)
class Errand(attempts.Errand, Generic[T]):
    """Something wanted of a server, under way.

    ask       gets it there, with requests named by `rename`; called again, elsewhere, after a fault
    deadline  when to take it back, by the monotonic clock; None for never
    rid       the name of the request that is there now, for taking it back
    worker    where it is now
    """

    ask: Callable[[Server, Errand[T]], Awaitable[T]]
    deadline: float | None = None
    rid: str = ""
    worker: Worker[Server] | None = None

    def rename(self) -> str:
        """A name for the next request. *Mutates* it."""
        self.rid = uuid.uuid4().hex
        return self.rid


class Post:
    """Carries errands to workers and back. Lives on one event loop. `Attempts` says what the numbers are."""

    def __init__(self, workers: Workers[Server], stats: RemoteStats, *, patience_s: float, losses: int) -> None:
        self._workers, self._stats = workers, stats
        self._attempts = Attempts(workers, stats, patience_s=patience_s, losses=losses)
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
        work = asyncio.create_task(self._attempts.answer(errand, partial(self._with, errand)))
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

    async def _with(self, errand: Errand[T], worker: Worker[Server]) -> T:
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

    def _abort(self, worker: Worker[Server], rid: str) -> None:
        """Tells the server, aside: nobody waits for what comes of it."""
        self._stats.aborted += 1
        task = asyncio.create_task(_told(worker.server, rid))
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)


async def _told(server: Server, rid: str) -> None:
    with suppress(Passing, Refused):  # then it notices by itself that nobody listens, after a few seconds
        await server.abort(rid)
