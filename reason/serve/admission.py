"""Limits concurrent searches: some run, a bounded queue waits, further requests are answered 429."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from reason.serve.errors import ApiError

_NEWEST_WEIGHT = 0.2  # of the newest search in the moving average of search durations


class AdmissionQueue:
    """Runs searches while their widths add up to at most `branches`; up to `queue` requests wait in order of arrival.

    A narrow search does not overtake a wide one that waits, and one wider than `branches` runs alone. Used from one
    event loop.

    concurrency   maximum number of searches, whatever their widths; None is no limit
    running       searches under way
    """

    def __init__(self, branches: int, concurrency: int | None, queue: int) -> None:
        self.running = 0
        self._branches, self._concurrency, self._queue = branches, concurrency, queue
        self._running_branches = 0
        self._requests: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._mean_seconds = 0.0

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._requests)

    @asynccontextmanager
    async def hold_slot(self, width: int, deadline: float | None) -> AsyncIterator[None]:
        """Waits until a search of this width may run, and holds its place. `deadline` is a time of the loop's clock.

        Raises: ApiError 429 at once if the queue is full, 504 if the deadline comes first.
        """
        width = min(width, self._branches)
        await self._wait_for_slot(width, deadline)
        began = time.monotonic()
        try:
            yield
            seconds = time.monotonic() - began  # not reached after an error: failed searches say nothing of durations
            self._mean_seconds += (seconds - self._mean_seconds) * (_NEWEST_WEIGHT if self._mean_seconds else 1.0)
        finally:
            self._leave(width)

    @property
    def retry_after_s(self) -> int:
        """Estimated seconds until the whole queue has been served, from the mean duration of recent searches."""
        turns = (1 + sum(width for width, _ in self._requests)) / self._branches
        if self._concurrency is not None:
            turns = max(turns, (1 + self.waiting) / self._concurrency)
        return max(1, math.ceil(math.ceil(turns) * self._mean_seconds))

    async def _wait_for_slot(self, width: int, deadline: float | None) -> None:
        if not self._requests and self._fits(width):
            return self._enter(width)
        if self.waiting >= self._queue:
            raise ApiError(
                429,
                f"{self.running} searches are under way and {self.waiting} requests wait; come back later",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(self.retry_after_s)},
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests.append((width, turn))
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except BaseException as error:
            if turn.cancelled():
                self._start_waiting()  # those behind it may fit
            else:  # its turn had come at the same moment
                self._leave(width)
            if isinstance(error, TimeoutError):
                raise timeout_error("while it waited in the queue") from None
            raise
        return None

    def _fits(self, width: int) -> bool:
        is_free = self._concurrency is None or self.running < self._concurrency
        return is_free and self._running_branches + width <= self._branches

    def _enter(self, width: int) -> None:
        self.running += 1
        self._running_branches += width

    def _leave(self, width: int) -> None:
        self.running -= 1
        self._running_branches -= width
        self._start_waiting()

    def _start_waiting(self) -> None:
        self._requests = deque(request for request in self._requests if not request[1].cancelled())
        while self._requests and self._fits(self._requests[0][0]):
            width, turn = self._requests.popleft()
            self._enter(width)
            turn.set_result(None)


def timeout_error(when: str) -> ApiError:
    """Returns the error of a request whose time limit passed before there was anything to answer with.

    A retry would take as long, so the header asks clients not to retry.
    """
    return ApiError(
        504,
        f"the request's time limit passed {when}",
        param="timeout",
        code="timeout",
        headers={"x-should-retry": "false"},
    )
