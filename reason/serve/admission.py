"""Limits concurrent searches: a fixed number run, a bounded queue waits, further requests are answered 429."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from reason.serve.errors import ApiError

_NEWEST_WEIGHT = 0.2  # of the newest search in the moving average of search durations


class AdmissionQueue:
    """Runs at most `concurrency` searches at a time; up to `queue` requests wait in order of arrival.

    Used from one event loop.

    running   searches under way
    waiting   requests in the queue
    """

    def __init__(self, concurrency: int, queue: int) -> None:
        self.running = self.waiting = 0
        self._concurrency, self._queue = concurrency, queue
        self._slots = asyncio.Semaphore(concurrency)
        self._mean_seconds = 0.0

    @asynccontextmanager
    async def hold_slot(self, deadline: float | None) -> AsyncIterator[None]:
        """Waits for a search slot and holds it. `deadline` is a time of the event loop's clock.

        Raises: ApiError 429 at once if the queue is full, 504 if the deadline comes first.
        """
        await self._wait_for_slot(deadline)
        began = time.monotonic()
        self.running += 1
        try:
            yield
            seconds = time.monotonic() - began  # not reached after an error: failed searches say nothing of durations
            self._mean_seconds += (seconds - self._mean_seconds) * (_NEWEST_WEIGHT if self._mean_seconds else 1.0)
        finally:
            self.running -= 1
            self._slots.release()

    @property
    def retry_after_s(self) -> int:
        """Estimated seconds until the whole queue has been served, from the mean duration of recent searches."""
        turns = math.ceil((self.waiting + 1) / self._concurrency)
        return max(1, math.ceil(turns * self._mean_seconds))

    async def _wait_for_slot(self, deadline: float | None) -> None:
        if self._slots.locked() and self.waiting >= self._queue:
            raise ApiError(
                429,
                f"{self.running} searches are under way and {self.waiting} requests wait; come back later",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(self.retry_after_s)},
            )
        self.waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise timeout_error("while it waited in the queue") from None
        finally:
            self.waiting -= 1


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
