"""HTTP with JSON: one server (`JsonHttpClient`), and the connections and tasks of all servers (`HttpSession`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import httpx2

from decoding.core import OversizedRequest
from reason.engines.event_loop import EventLoopThread, gather_or_cancel
from reason.engines.http.bounded_http import BoundedHttp
from reason.engines.http.errors import (
    Overloaded,
    RequestRejected,
    ResponseLost,
    ServerUnreachable,
    find_error_message,
    parse_retry_after,
)
from reason.engines.http.reply import Reply, ReplyLimits

T = TypeVar("T")

_CANCEL_S = 0.2  # for tasks and connections to end; they end at once unless something is wrong
_ABORTS_S = 0.5  # for the abort requests of a closing session; servers notice closed connections without them
_TOO_LONG = ("context length", "context_length", "context size", "max_req_input_len", "longer than")


class JsonHttpClient:
    """Sends JSON to one server and reads JSON back; every failure becomes one of `http.errors` or OversizedRequest.

    url   address that paths are appended to
    http  connections, shared with the other servers
    """

    def __init__(self, url: str, http: BoundedHttp) -> None:
        self.url, self._http = url, http

    async def request_json(
        self, method: str, path: str, body: Mapping[str, object] | None = None, *, timeout_s: float | None = None
    ) -> object:
        """Returns the JSON of the reply. `timeout_s` is the session's where it is None.

        Raises: a TransientError, RequestRejected or OversizedRequest.
        """
        reply = await self._http.fetch(method, self.url, path, body, total_s=timeout_s)
        if not reply.has_content:
            raise self.classify_reply(reply, path)
        return reply.parse_json()

    @contextmanager
    def name_in_errors(self) -> Iterator[None]:
        """Puts the server's address before what the block finds wrong in a reply. Raises: ResponseLost."""
        try:
            yield
        except ResponseLost as error:
            if self.url in str(error):
                raise
            raise ResponseLost(f"{self.url}: {error}") from None

    async def read_events(
        self,
        path: str,
        body: Mapping[str, object],
        add_event: Callable[[object], bool],
        *,
        count_tokens: Callable[[], int],
        timeout_s: float | None = None,
    ) -> None:
        """Reads the stream that a POST returns; see `BoundedHttp.read_events`. Raises: as `request_json`.

        The whole reply of a server that does not stream is one event.
        """
        reply = await self._http.read_events(
            self.url, path, body, add_event, count_tokens=count_tokens, total_s=timeout_s
        )
        if reply is None:
            return
        if not reply.has_content:
            raise self.classify_reply(reply, path)
        add_event(reply.parse_json())

    def describe_error(self, content: object) -> str:
        """Returns the message in the body of an error reply."""
        return find_error_message(content)

    def classify_reply(self, reply: Reply, path: str) -> Exception:
        """Returns the error for a reply whose status says that it has no content."""
        try:
            text = self.describe_error(reply.parse_json())
        except ResponseLost:  # empty, or no JSON
            text = reply.describe_text()
        if reply.status < httpx2.codes.BAD_REQUEST:
            target = reply.headers.get("location")
            text = f"a redirect to {target}, which is not followed" if target else "no reply to a request"
        return self.classify_status(reply.status, path, self._http.mask.describe(text), reply.headers)

    def classify_status(self, status: int, path: str, text: str, headers: Mapping[str, str]) -> Exception:
        """Returns the error for a status that is no success; `text` is the server's message, fit to be shown."""
        message, retry_after_s = f"{self.url}{path} says {status}: {text}", parse_retry_after(headers)
        if status == httpx2.codes.TOO_MANY_REQUESTS:
            return Overloaded(message, retry_after_s)
        if status == httpx2.codes.SERVICE_UNAVAILABLE:  # starting up, or a router without servers
            return ServerUnreachable(message, retry_after_s)
        if status >= httpx2.codes.INTERNAL_SERVER_ERROR or status < httpx2.codes.BAD_REQUEST:
            return ResponseLost(message)
        return OversizedRequest(message) if any(part in text for part in _TOO_LONG) else RequestRejected(message)


class HttpSession:
    """Connections to all servers of a client, with an event loop in its own thread. Callable from any thread and loop.

    limits   of every reply
    api_key  sent with every request
    http     the connections, for use on this loop
    """

    def __init__(self, limits: ReplyLimits, api_key: str | None = None) -> None:
        self.http = BoundedHttp(limits, api_key)
        self._loop = EventLoopThread()
        self._running: set[asyncio.Task[object]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._is_closed = self._is_disconnected = False

    def probe_all(self, probes: Sequence[Coroutine[object, object, T]]) -> list[T]:
        """Returns the results of the first requests to all servers; blocks. Raises: the first error, after closing."""
        try:
            return self._loop.run(gather_or_cancel(probes))
        except BaseException:
            self.close()
            raise

    async def run_all(self, work: Sequence[Coroutine[object, object, T]]) -> list[T]:
        """Returns the results, in order. Cancelling the call cancels all of `work`.

        Raises: the first error, after cancelling the rest; RuntimeError once closed, or in a forked process.
        """
        try:
            self._loop.require_process()
            if self._is_closed:
                raise RuntimeError("the connection to the servers is closed")
        except RuntimeError:
            for coroutine in work:
                coroutine.close()
            raise
        return await self._loop.arun(self._run_tracked(work))

    def start_background(self, work: Coroutine[object, object, None]) -> None:
        """Starts work that nothing waits for but `close`; once that has closed the connections, nothing is started.

        Called on the session's loop.
        """
        if self._is_disconnected:  # by a task that was late to end; its server notices the closed connection
            work.close()
            return
        task = asyncio.create_task(work)
        self._background.add(task)  # the loop itself keeps weak references only
        task.add_done_callback(self._background.discard)

    def close(self) -> None:
        """Cancels what is running, gives background work half a second, ends the thread; takes less than a second.

        Calling it twice is harmless.
        """
        if not self._is_closed and not self._loop.is_forked:
            self._is_closed = True
            self._loop.run(self._shut_down())
            self._loop.close()

    async def _shut_down(self) -> None:
        # Every step has its time: what has not ended by then is cancelled with the loop.
        await _end_within(_CANCEL_S, self._running, cancel=True)
        # Only now: the cancelled tasks have just started their abort requests, which need open connections.
        await _end_within(_ABORTS_S, self._background, cancel=False)
        self._is_disconnected = True
        await _end_within(_CANCEL_S, [asyncio.create_task(self.http.aclose())], cancel=False)

    async def _run_tracked(self, work: Sequence[Coroutine[object, object, T]]) -> list[T]:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await gather_or_cancel(work)
        finally:
            self._running.discard(task)


async def _end_within(seconds: float, tasks: Iterable[asyncio.Task[T]], *, cancel: bool) -> None:
    """Waits for the end of tasks, after cancelling them with `cancel`; cancels those that go on for longer."""
    pending = list(tasks)
    for task in pending if cancel else ():
        task.cancel()
    if pending:
        _, late = await asyncio.wait(pending, timeout=seconds)
        for task in late:
            task.cancel()
