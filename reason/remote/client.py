"""Several servers as one that can be asked: their connections, an event loop of their own, and what is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import httpx2

from reason.loop import LoopThread
from reason.remote.post import Errand, Post
from reason.remote.server import Server
from reason.remote.stats import RemoteStats
from reason.remote.workers import Workers

T = TypeVar("T")


class Client:
    """May be called from any thread and from several event loops. The settings are those of `Servers`.

    rest_s   a server that failed is left alone for so long
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        request_timeout_s: float = 600.0,
        patience_s: float = 120.0,
        losses: int = 3,
        most: int = 256,
        rest_s: float = 5.0,
    ) -> None:
        # Connections are not counted: `most` says how many there are. Idle ones go before a server closes them.
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(request_timeout_s, connect=10.0, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        )
        self.urls = tuple(urls)
        self._servers = [Server(url, self._http) for url in self.urls]
        self.stats = RemoteStats()
        workers = Workers(self._servers, most=most, rest_s=rest_s)
        self._post = Post(workers, self.stats, patience_s=patience_s, losses=losses)
        self._loop = LoopThread()
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def meet(self, introduction: Callable[[Server], Coroutine[Any, Any, T]]) -> list[T]:
        """What comes of introducing oneself to each server. Raises: its error, after closing."""
        try:
            return self._loop.run(_together([introduction(server) for server in self._servers]))
        except BaseException:
            self.close()
            raise

    async def together(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """The results, in order, of work that calls `reply`. Cancelling takes all of it back from the servers.

        Raises: the first error, after cancelling the rest; RuntimeError once closed.
        """
        if self._closed:
            for one in work:
                one.close()
            raise RuntimeError("the connection to the servers is closed")
        return await self._loop.arun(self._all(work))

    async def reply(self, errand: Errand[T]) -> T | None:
        """See `Post.reply`. Raises: Refused, OversizedRequest, NoServer."""
        return await self._post.reply(errand)

    def close(self) -> None:
        """Takes back what is with the servers and ends the thread. Calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            self._loop.run(self._end())
            self._loop.close()

    async def _end(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._post.settle()
        await self._http.aclose()

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
