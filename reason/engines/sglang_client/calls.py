"""This side of all servers: one HTTP client, an event loop of its own, calls that can be taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import httpx2

from reason.engines.event_loop import LoopThread

T = TypeVar("T")


class Calls:
    """May be used from any thread and from several event loops.

    request_timeout_s  a server that takes longer over one request hangs
    headers            sent with every request
    http               what to call with, on the loop
    """

    def __init__(self, request_timeout_s: float, headers: Mapping[str, str] | None = None) -> None:
        # Connections are not counted: whoever sends says how many there are. Idle ones go before a server closes them.
        self.http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(request_timeout_s, connect=10.0, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        )
        self._loop = LoopThread()
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def introduce(self, meetings: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """What the meetings with all servers came to, waited for here. Raises: their first error, after closing."""
        try:
            return self._loop.run(_together(meetings))
        except BaseException:
            self.close()
            raise

    async def together(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """The results, in order. Cancelling takes back all of it.

        Raises: the first error, after cancelling the rest; RuntimeError once closed.
        """
        if self._closed:
            for one in work:
                one.close()
            raise RuntimeError("the connection to the servers is closed")
        return await self._loop.arun(self._all(work))

    def close(self, settle: Callable[[], Awaitable[None]] | None = None) -> None:
        """Takes back what is with the servers, waits for `settle`, ends the thread. Calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            self._loop.run(self._end(settle))
            self._loop.close()

    async def _end(self, settle: Callable[[], Awaitable[None]] | None) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if settle is not None:
            await settle()
        await self.http.aclose()

    async def _all(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await _together(work)
        finally:
            self._running.discard(task)


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in order. Raises: the first error, after cancelling the rest."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
