"""Retries: where a request is sent, how often again after each kind of error, and how long to wait in between.

A 429 arrives here as `Overloaded`, with the pause of its Retry-After header if it had one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from decoding.core import OversizedRequest
from reason.engines.http.errors import (
    NoServer,
    Overloaded,
    RequestRejected,
    ResponseLost,
    ServerSwitched,
    ServerUnreachable,
    TransientError,
)
from reason.engines.http.in_flight import InFlightRequest
from reason.engines.http.server_pool import PooledServer, ServerPool, ServerT
from reason.engines.http.settings import ServerSettings
from reason.engines.http.stats import ClientStats

ResponseT = TypeVar("ResponseT")

_SHORT_PAUSE_S = 1.0  # a server's own pause below this does not replace the growing one: 0 would be a busy loop
_RECHECK_S = 1.0  # how often a request that waits for a full server looks for another one
_ACCEPTED_AFTER_S = 2.0  # a request at a server for so long has been taken: servers refuse at once


class RetryPolicy(Generic[ServerT]):
    """Sends requests to the servers of `pool`, again after a TransientError. `settings` has the limits and pauses.

    | error             | next attempt                                            | gives up (NoServer)              |
    | Overloaded        | after Retry-After, or a random growing pause; elsewhere |                                  |
    |                   | where the server stays full and another one works       | see `_require_progress`          |
    | ServerUnreachable | another server, after a growing pause                   | see `_require_progress`          |
    | ResponseLost      | another server at once, else after a growing pause      | see `_count_loss`                |
    | RequestRejected   | another server at once; a second rejection counts       | never: the rejection is raised   |

    With a working server beside them, servers that do anything else fail no request: each costs one attempt.
    """

    def __init__(self, pool: ServerPool[ServerT], stats: ClientStats, settings: ServerSettings) -> None:
        self._pool, self._stats, self._settings = pool, stats, settings
        self._backoff = wait_random_exponential(multiplier=settings.min_backoff_s, max=settings.max_backoff_s)
        self._last_response_at = float("-inf")
        self._sent_at: dict[int, float] = {}  # of the requests at servers now

    async def send_with_retries(
        self, request: InFlightRequest, send: Callable[[PooledServer[ServerT]], Awaitable[ResponseT]]
    ) -> ResponseT:
        """Returns what `send` returns for a server with a free slot.

        Raises: NoServer; any error that is no TransientError; the last TransientError of an expired request.
        """
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(TransientError),
            wait=partial(self._pause_before_retry, request),
            stop=lambda _: request.is_expired,
            reraise=True,
        )
        response: ResponseT = await retrying(self._attempt, request, send)
        return response

    async def _attempt(
        self, request: InFlightRequest, send: Callable[[PooledServer[ServerT]], Awaitable[ResponseT]]
    ) -> ResponseT:
        try:
            pooled = self._pool.choose_server(request.problem, request.avoided)
            with self._pool.track_assigned(pooled) as is_trial:
                async with pooled.slots:
                    await self._wait_for_turn(pooled, request, is_trial=is_trial)
                    return await self._send_now(pooled, request, send)
        except (ServerUnreachable, Overloaded) as error:
            self._require_progress(request, error)
            raise
        except ResponseLost as error:
            self._count_loss(request, error)
            raise

    async def _wait_for_turn(self, pooled: PooledServer[ServerT], request: InFlightRequest, *, is_trial: bool) -> None:
        """Waits for the end of the pause that a full server asked for. Raises: ServerSwitched if another is better."""
        while True:
            if not is_trial and self._pool.is_worse_than_another(pooled, request.avoided):
                raise ServerSwitched(f"{pooled.server.url} failed or is full")
            left_s = self._pool.pause_left_s(pooled)
            if not left_s:
                return
            self._require_progress(request, Overloaded(f"{pooled.server.url} is full", left_s))
            # A random extra of up to 1 s, so that not all waiting requests arrive in the same instant.
            await asyncio.sleep(min(left_s + random.uniform(0, min(1.0, left_s)), _RECHECK_S))

    async def _send_now(
        self,
        pooled: PooledServer[ServerT],
        request: InFlightRequest,
        send: Callable[[PooledServer[ServerT]], Awaitable[ResponseT]],
    ) -> ResponseT:
        """Returns the response of this server, and records what it did."""
        sent_at = self._sent_at[id(request)] = time.monotonic()
        try:
            with self._stats.track_in_flight(), pooled.server.name_in_errors():
                response = await send(pooled)
        except Overloaded as error:
            self._stats.full += 1
            self._pool.record_refusal(pooled, error.retry_after_s or 0.0)
            raise
        except ServerUnreachable:
            self._pool.record_failure(pooled, sent_at)
            raise
        except ResponseLost:
            request.record_loss(pooled)
            if len(self._pool.servers) > 1 or self._settings.pauses_only_server:
                self._pool.record_failure(pooled, sent_at)
            raise
        except (RequestRejected, OversizedRequest) as error:
            if request.rejection is not None or not self._pool.has_fresh_server({pooled, *request.avoided}):
                raise
            request.rejected_by.add(pooled)
            request.rejection = error
            raise ServerSwitched(str(error)) from error
        finally:
            del self._sent_at[id(request)]
        self._record_response(pooled, request, sent_at)
        return response

    def _record_response(self, pooled: PooledServer[ServerT], request: InFlightRequest, sent_at: float) -> None:
        self._last_response_at = time.monotonic()
        self._pool.record_reply(pooled)
        for other in self._pool.servers:
            if other in request.rejected_by:  # wrongly: this server has answered
                self._pool.record_failure(other, sent_at)

    def _count_loss(self, request: InFlightRequest, error: ResponseLost) -> None:
        """Raises NoServer where a request has lost too many responses.

        That is at `max_retries` servers, for it may itself be the cause and must not take down all of them; or as often
        where every server has lost it. While one has not, it may be the one that works: the limit is then as often at
        each.
        """
        self._stats.reissued += 1
        limit, num_servers = self._settings.max_retries, len(self._pool.servers)
        is_lost_by_all = len(request.lost_by) == num_servers
        if len(request.lost_by) >= limit or request.num_lost >= (limit if is_lost_by_all else limit * num_servers):
            raise NoServer(f"{error}; {request.num_lost} replies to this request were lost") from error

    def _require_progress(self, request: InFlightRequest, error: ServerUnreachable | Overloaded) -> None:
        """Raises NoServer where nothing has got through for `unavailable_timeout_s`, or would by what servers say.

        A response to any other request counts as progress, and so does another request that a server has accepted: a
        long queue in front of a busy server is no failure.
        """
        timeout_s, now = self._settings.unavailable_timeout_s, time.monotonic()
        request.stuck_since = now if request.stuck_since is None else request.stuck_since
        pause_s = min(self._pool.pause_left_s(pooled) for pooled in self._pool.servers)
        if pause_s > timeout_s:
            raise NoServer(f"{error}; it says to wait {pause_s:.0f} s, longer than {timeout_s:g} s") from error
        has_accepted = any(now - sent_at > _ACCEPTED_AFTER_S for sent_at in self._sent_at.values())
        if not has_accepted and now - max(request.stuck_since, self._last_response_at) > timeout_s:
            reason = "nothing got through for" if isinstance(error, Overloaded) else "gave up after"
            raise NoServer(f"{error}; {reason} {timeout_s:g} s") from error

    def _pause_before_retry(self, request: InFlightRequest, state: RetryCallState) -> float:
        """Returns the seconds to wait before the next attempt."""
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, ServerSwitched):
            return 0.0
        if isinstance(error, ResponseLost) and self._pool.has_fresh_server(request.avoided):
            return 0.0  # another server can take it at once
        if isinstance(error, Overloaded) and (error.retry_after_s or 0.0) >= _SHORT_PAUSE_S:
            return 0.0  # `_wait_for_turn` waits for the server's own pause
        return self._backoff(state)
