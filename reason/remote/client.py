"""This side of every engine made of servers: one HTTP client, a loop of its own, calls that can be taken back."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import httpx2

from decoding.core import Generation, GenerationRequest
from reason.loop import LoopThread
from reason.remote.stats import RemoteStats

T = TypeVar("T")


class Client(ABC):
    """Implements `core.Engine` up to what one request is. May be called from any thread and from several event loops.

    request_timeout_s  a server that takes longer over one request hangs
    headers            sent with every request
    """

    def __init__(self, request_timeout_s: float, headers: Mapping[str, str] | None = None) -> None:
        # Connections are not counted: whoever sends says how many there are. Idle ones go before a server closes them.
        self._http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(request_timeout_s, connect=10.0, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        )
        self._stats = RemoteStats()
        self._loop = LoopThread()
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def stats(self) -> RemoteStats:
        """A snapshot; cheap, callable at any time."""
        snapshot = self._stats.snapshot()
        assert isinstance(snapshot, RemoteStats)
        return snapshot

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation per request, in order. Cancelling takes all of them back from the servers.

        Raises: OversizedRequest or ValueError before anything is sent; NoServer; RuntimeError once closed.
        """
        for request in requests:
            self._validate(request)
        if self._closed:
            raise RuntimeError("the engine is closed")
        return await self._loop.arun(self._all(requests))

    def close(self) -> None:
        """Takes back what is with the servers and ends the client's thread. Calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            self._loop.run(self._end())
            self._loop.close()

    @abstractmethod
    def _validate(self, request: GenerationRequest) -> None:
        """Raises: OversizedRequest or ValueError for what no server can do."""

    @abstractmethod
    async def _write(self, request: GenerationRequest) -> Generation:
        """What a server makes of one request."""

    async def _settle(self) -> None:  # noqa: B027  # most have nothing to wait for
        """Waits for what is still being said once every call has ended."""

    def _introduce(self, meetings: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """What the meetings with all servers came to. Raises: what they raise, after closing the client."""
        try:
            return self._loop.run(_together(meetings))
        except BaseException:
            self._closed = True
            self._loop.run(self._http.aclose())
            self._loop.close()
            raise

    async def _end(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._settle()
        await self._http.aclose()

    async def _all(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await _together([self._one(request) for request in requests])
        finally:
            self._running.discard(task)

    async def _one(self, request: GenerationRequest) -> Generation:
        self._stats.came()
        try:
            generation = await self._write(request)
        finally:
            self._stats.left()
        self._stats.charge(generation.spent)
        return generation


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in order. Raises: the first error, after cancelling the rest."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
