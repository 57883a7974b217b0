"""Retries: where a request is sent, how often again after each kind of error, and how long to wait in between.

A 429 arrives here as `Overloaded`, with the pause of its Retry-After header if it had one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from reason.engines.http.errors import NoServer, Overloaded, ResponseLost, ServerUnreachable, TransientError
from reason.engines.http.server_pool import PooledServer, ServerPool, ServerT
from reason.engines.http.settings import ServerSettings
from reason.engines.http.stats import ClientStats

ResponseT = TypeVar("ResponseT")


@dataclass
class InFlightRequest:
    """A request on its way, and what has happened to it; instants are those of `time.monotonic()`.

    problem            group of the request; its requests go to the same server
    is_expired         whether its deadline has passed, so that it is not sent again
    num_lost           responses lost so far
    unreachable_since  first of the errors in a row that found no server; None after any other event
    overloaded_since   first of the errors in a row that found a full server; None after any other event
    """

    problem: str = ""
    is_expired: bool = False
    num_lost: int = 0
    unreachable_since: float | None = None
    overloaded_since: float | None = None
    started_at: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the request was made."""
        return time.monotonic() - self.started_at


class RetryPolicy(Generic[ServerT]):
    """Sends requests to the servers of `pool`, again after a TransientError. `settings` has the limits and pauses.

    | error             | next attempt                                           | gives up (NoServer)               |
    | Overloaded        | after Retry-After, else after a random growing pause   | see `_handle_overload`            |
    | ServerUnreachable | another server at once, else after a growing pause     | after `unavailable_timeout_s`     |
    | ResponseLost      | another server at once, else after a growing pause     | at the `max_retries`-th loss      |
    """

    def __init__(self, pool: ServerPool[ServerT], stats: ClientStats, settings: ServerSettings) -> None:
        self._pool, self._stats, self._settings = pool, stats, settings
        self._backoff = wait_random_exponential(multiplier=settings.min_backoff_s, max=settings.max_backoff_s)
        self._last_response_at = float("-inf")

    async def send_with_retries(
        self, request: InFlightRequest, send: Callable[[PooledServer[ServerT]], Awaitable[ResponseT]]
    ) -> ResponseT:
        """Returns what `send` returns for a server with a free slot.

        Raises: NoServer; any error that is no TransientError; the last TransientError of an expired request.
        """
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(TransientError),
            wait=self._pause_before_retry,
            stop=lambda _: request.is_expired,
            reraise=True,
        )
        response: ResponseT = await retrying(self._attempt, request, send)
        return response

    async def _attempt(
        self, request: InFlightRequest, send: Callable[[PooledServer[ServerT]], Awaitable[ResponseT]]
    ) -> ResponseT:
        pooled = None
        try:
            pooled = self._pool.choose_server(request.problem)
            response = await self._send_when_free(pooled, send)
        except Overloaded as error:
            self._stats.full += 1
            request.unreachable_since, request.overloaded_since = None, request.overloaded_since or time.monotonic()
            assert pooled is not None
            self._handle_overload(pooled, request, error)
            raise
        except ServerUnreachable as error:
            request.unreachable_since = request.unreachable_since or time.monotonic()
            timeout_s = self._settings.unavailable_timeout_s
            if time.monotonic() - request.unreachable_since > timeout_s:
                raise NoServer(f"{error}; gave up after {timeout_s:g} s") from error
            raise
        except ResponseLost as error:
            self._stats.reissued += 1
            request.num_lost, request.unreachable_since, request.overloaded_since = request.num_lost + 1, None, None
            # A request that every server fails on may itself be the cause; it must not take down all of them.
            if request.num_lost >= self._settings.max_retries:
                raise NoServer(f"{error}; {request.num_lost} servers were lost over this request") from error
            raise
        self._last_response_at = time.monotonic()
        return response

    async def _send_when_free(
        self, pooled: PooledServer[ServerT], send: Callable[[PooledServer[ServerT]], Awaitable[ResponseT]]
    ) -> ResponseT:
        """Returns the response of this server, after waiting for a slot and for the end of its pause."""
        # Counted before the slot is free: `choose_server` compares servers by what waits for them, too.
        pooled.num_assigned += 1
        try:
            async with pooled.slots:
                await self._pool.wait_until_accepting(pooled)
                if not self._pool.is_available(pooled):  # it failed while this request waited for a slot
                    raise ServerUnreachable(f"{pooled.server.url} failed")
                return await self._send_now(pooled, send)
        finally:
            pooled.num_assigned -= 1

    async def _send_now(
        self, pooled: PooledServer[ServerT], send: Callable[[PooledServer[ServerT]], Awaitable[ResponseT]]
    ) -> ResponseT:
        """Returns the response of this server; excludes the server for a while where it failed."""
        with self._stats.track_in_flight():
            try:
                return await send(pooled)
            except ServerUnreachable:
                self._pool.mark_failed(pooled)
                raise
            except ResponseLost:
                if len(self._pool.servers) > 1 or self._settings.pauses_only_server:
                    self._pool.mark_failed(pooled)
                raise

    def _handle_overload(self, pooled: PooledServer[ServerT], request: InFlightRequest, error: Overloaded) -> None:
        """Holds all requests back from a server for the pause that it asks for.

        Raises: NoServer where that pause, or the time without any response, is longer than `overload_timeout_s`.
        """
        timeout_s = self._settings.overload_timeout_s
        if error.retry_after_s is not None:
            if timeout_s is not None and error.retry_after_s > timeout_s:
                raise NoServer(
                    f"{error}; it says to wait {error.retry_after_s:g} s, longer than {timeout_s:g} s"
                ) from error
            self._pool.mark_overloaded(pooled, error.retry_after_s)
        assert request.overloaded_since is not None
        # A response to any other request counts as progress: a long queue in front of a busy server is no failure.
        last_progress = max(request.overloaded_since, self._last_response_at)
        if timeout_s is not None and time.monotonic() - last_progress > timeout_s:
            raise NoServer(f"{error}; nothing got through for {timeout_s:g} s") from error

    def _pause_before_retry(self, state: RetryCallState) -> float:
        """Returns the seconds to wait before the next attempt."""
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, ResponseLost) and len(self._pool.servers) > 1:
            return 0.0  # another server can take it at once
        if isinstance(error, Overloaded) and error.retry_after_s is not None:
            return 0.0  # `wait_until_accepting` waits for the server's own pause
        return self._backoff(state)
