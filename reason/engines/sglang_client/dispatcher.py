"""Sends requests to SGLang servers, again after failures, and takes them back when they are cancelled or late."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from reason.engines.http.client import HttpSession
from reason.engines.http.errors import NoServer, RequestRejected, ResponseLost, TransientError
from reason.engines.http.in_flight import InFlightRequest
from reason.engines.http.retry_policy import RetryPolicy
from reason.engines.http.server_pool import PooledServer, ServerPool
from reason.engines.http.settings import ServerSettings
from reason.engines.http.stats import ClientStats
from reason.engines.sglang_client.server import SGLangServer

T = TypeVar("T")

_ABORT_GRACE_S = 2.0  # how long an aborted request may take to return with the tokens that it has


@dataclass(kw_only=True)
class AbortableRequest(InFlightRequest, Generic[T]):
    """A request that can be taken back from the server where it is.

    send        sends it to a server, under a new id from `renew_id`; called again, with another server, after errors
    deadline    `time.monotonic()` instant at which it is taken back; None for never
    request_id  id that the server knows it by now
    at_server   server where it is now; None between attempts
    """

    send: Callable[[SGLangServer, AbortableRequest[T]], Awaitable[T]]
    deadline: float | None = None
    request_id: str = ""
    at_server: PooledServer[SGLangServer] | None = None

    def renew_id(self) -> str:
        """Returns a new id for the next attempt: a lost one may still run under the old id. *Mutates* it."""
        self.request_id = uuid.uuid4().hex
        return self.request_id


class Dispatcher:
    """The client of all SGLang servers of `settings`. Callable from any thread and event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings, self.urls = settings, tuple(settings.urls)
        self.stats = ClientStats()
        self.session = HttpSession(settings.reply_limits)
        self._servers = [SGLangServer(url, self.session.http) for url in self.urls]
        pool = ServerPool(self._servers, max_in_flight=settings.max_in_flight, cooldown_s=settings.cooldown_s)
        self._retry_policy = RetryPolicy(pool, self.stats, settings)

    def probe_servers(self, probe: Callable[[SGLangServer], Coroutine[object, object, T]]) -> list[T]:
        """Returns what `probe` returns for each server; blocks. Raises: its first error, after closing."""
        return self.session.probe_all([probe(server) for server in self._servers])

    async def dispatch(self, request: AbortableRequest[T]) -> T | None:
        """Returns the response, at the deadline with the tokens there are by then, None if there are none.

        Runs on the session's loop. Raises: RequestRejected, OversizedRequest, NoServer.
        """
        with self.stats.track_request():
            return await self._dispatch_until_deadline(request)

    async def _dispatch_until_deadline(self, request: AbortableRequest[T]) -> T | None:
        timeout_s = None if request.deadline is None else request.deadline - time.monotonic()
        if timeout_s is not None and timeout_s <= 0:
            return None
        attempts = self._retry_policy.send_with_retries(request, partial(self._send_to, request))
        work = asyncio.create_task(attempts)
        try:
            await asyncio.wait({work}, timeout=timeout_s)
            if not work.done():
                request.is_expired = True  # no further attempt, and an "abort" in the reply is our own
                if request.at_server is not None:
                    self._abort_in_background(request.at_server, request.request_id)
                    # Not cancelled at once: the server answers the abort with the tokens generated so far.
                    await asyncio.wait({work}, timeout=_ABORT_GRACE_S)
            return work.result() if work.done() else None
        except (TransientError, NoServer):
            if request.is_expired:
                return None
            raise
        finally:
            work.cancel()
            await asyncio.wait({work})  # its cancellation starts an abort, which `close` must find among the tasks

    async def _send_to(self, request: AbortableRequest[T], pooled: PooledServer[SGLangServer]) -> T:
        request.at_server = pooled
        try:
            return await request.send(pooled.server, request)
        except (ResponseLost, asyncio.CancelledError):
            self._abort_in_background(pooled, request.request_id)  # the server may only hang, and still work on it
            raise
        finally:
            request.at_server = None

    def _abort_in_background(self, pooled: PooledServer[SGLangServer], request_id: str) -> None:
        """Starts an abort request and does not wait for it."""
        self.stats.aborted += 1
        self.session.start_background(_abort_quietly(pooled.server, request_id))


async def _abort_quietly(server: SGLangServer, request_id: str) -> None:
    # A server that misses the abort notices the closed connection by itself, after a few seconds.
    with suppress(TransientError, RequestRejected):
        await server.abort_request(request_id)
