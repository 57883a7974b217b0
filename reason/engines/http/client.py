"""HTTP with JSON: one server (`JsonHttpClient`), and the connections and tasks of all servers (`HttpSession`)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import TypeVar

import httpx2

from decoding.core import OversizedRequest
from reason.engines.event_loop import EventLoopThread
from reason.engines.http.errors import (
    Overloaded,
    RequestRejected,
    ResponseLost,
    ServerUnreachable,
    find_error_message,
    parse_retry_after,
)

T = TypeVar("T")

_TOO_LONG = ("context length", "context_length", "context size", "max_req_input_len", "longer than")


class JsonHttpClient:
    """Sends JSON to one server and reads JSON back; every failure becomes one of `http.errors` or OversizedRequest.

    url   address that paths are appended to
    http  connections, shared with the other servers; has no base address
    """

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self.url, self._http = url, http

    async def request_json(
        self, method: str, path: str, body: Mapping[str, object] | None = None, *, timeout_s: float | None = None
    ) -> object:
        """Returns the JSON of the reply. `timeout_s` is the session's where it is None.

        Raises: a TransientError, RequestRejected or OversizedRequest.
        """
        response = await self.send_request(method, path, body, timeout_s=timeout_s)
        try:
            content = response.json()
        except ValueError as error:
            if response.is_success:
                text = response.text[:80]
                raise ResponseLost(f"{self.url}{path} sent something that is not JSON: {text!r}") from error
            content = response.text[:200]
        if response.is_success:
            return content
        raise self.classify_status(response.status_code, path, self.describe_error(content), response.headers)

    async def send_request(
        self, method: str, path: str, body: Mapping[str, object] | None, *, timeout_s: float | None = None
    ) -> httpx2.Response:
        """Returns the reply, whatever its status. Raises: ServerUnreachable or ResponseLost."""
        timeout = httpx2.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s
        try:
            return await self._http.request(method, self.url + path, json=body, timeout=timeout)
        except httpx2.TransportError as error:
            raise self.classify_transport_error(error) from error

    def describe_error(self, content: object) -> str:
        """Returns the message in the body of an error reply."""
        return find_error_message(content)

    def classify_transport_error(self, error: httpx2.TransportError) -> ServerUnreachable | ResponseLost:
        """Returns the error for a failed connection: before the request was sent, or after."""
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return ServerUnreachable(f"{self.url} does not answer ({type(error).__name__})")
        return ResponseLost(f"{self.url} broke off ({type(error).__name__}: {error})")

    def classify_status(self, status: int, path: str, text: str, headers: httpx2.Headers) -> Exception:
        """Returns the error for a status that is no success; `text` is the server's message."""
        message, retry_after_s = f"{self.url}{path} says {status}: {text}", parse_retry_after(headers)
        if status == httpx2.codes.TOO_MANY_REQUESTS:
            return Overloaded(message, retry_after_s)
        if status == httpx2.codes.SERVICE_UNAVAILABLE:  # starting up, or a router without servers
            return ServerUnreachable(message, retry_after_s)
        if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            return ResponseLost(message)
        return OversizedRequest(message) if any(part in text for part in _TOO_LONG) else RequestRejected(message)


class HttpSession:
    """Connections to all servers of a client, with an event loop in its own thread. Callable from any thread and loop.

    request_timeout_s  time limit of one request; a server that needs longer counts as hanging
    headers            sent with every request
    http               the connections, for use on this loop
    """

    def __init__(self, request_timeout_s: float, headers: Mapping[str, str] | None = None) -> None:
        # No limit on connections here: ServerPool limits the requests per server. Idle connections expire after 2 s,
        # before a server closes them: a request sent on a connection that is being closed would count as lost.
        self.http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(request_timeout_s, connect=10.0, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        )
        self._loop = EventLoopThread()
        self._running: set[asyncio.Task[object]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def probe_all(self, probes: Sequence[Coroutine[object, object, T]]) -> list[T]:
        """Returns the results of the first requests to all servers; blocks. Raises: the first error, after closing."""
        try:
            return self._loop.run(_gather_or_cancel(probes))
        except BaseException:
            self.close()
            raise

    async def run_all(self, work: Sequence[Coroutine[object, object, T]]) -> list[T]:
        """Returns the results, in order. Cancelling the call cancels all of `work`.

        Raises: the first error, after cancelling the rest; RuntimeError once closed.
        """
        if self._is_closed:
            for coroutine in work:
                coroutine.close()
            raise RuntimeError("the connection to the servers is closed")
        return await self._loop.arun(self._run_tracked(work))

    def start_background(self, work: Coroutine[object, object, None]) -> None:
        """Starts work that nothing waits for but `close`. Called on the session's loop."""
        task = asyncio.create_task(work)
        self._background.add(task)  # the loop itself keeps weak references only
        task.add_done_callback(self._background.discard)

    def close(self) -> None:
        """Cancels what is running, waits for background work, ends the thread. Calling it twice is harmless."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.run(self._shut_down())
            self._loop.close()

    async def _shut_down(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        # Only now: the cancelled tasks have just started their abort requests, which need open connections.
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.http.aclose()

    async def _run_tracked(self, work: Sequence[Coroutine[object, object, T]]) -> list[T]:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await _gather_or_cancel(work)
        finally:
            self._running.discard(task)


async def _gather_or_cancel(work: Sequence[Coroutine[object, object, T]]) -> list[T]:
    """Returns the results, in order. Raises: the first error, after cancelling the rest."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        # `gather` leaves the others running after an error; they must be gone before the caller sees it.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
