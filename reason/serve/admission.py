"""Who may search now, who waits, and who is told to come back later."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from reason.serve.errors import ApiError

_FORGETS = 0.2  # weight of the newest search in the mean of their seconds


class Admission:
    """At most `concurrency` searches at a time; `queue` more wait in order of arrival. Used from one event loop.

    running   searches under way
    waiting   requests that wait for their turn
    """

    def __init__(self, concurrency: int, queue: int) -> None:
        self.running = self.waiting = 0
        self._concurrency, self._queue = concurrency, queue
        self._slots = asyncio.Semaphore(concurrency)
        self._mean_seconds = 0.0

    @asynccontextmanager
    async def turn(self, deadline: float | None) -> AsyncIterator[None]:
        """Waits for a turn and holds it. `deadline` is an instant of the event loop's clock.

        Raises: ApiError 429 at once where too many wait, 504 where the deadline comes first.
        """
        await self._enter(deadline)
        began = time.monotonic()
        self.running += 1
        try:
            yield
            took = time.monotonic() - began  # of searches that came to an end
            self._mean_seconds += (took - self._mean_seconds) * (_FORGETS if self._mean_seconds else 1.0)
        finally:
            self.running -= 1
            self._slots.release()

    @property
    def retry_after(self) -> int:
        """Seconds until all that wait now will have had their turn, if searches go on to take what they took lately."""
        turns = math.ceil((self.waiting + 1) / self._concurrency)
        return max(1, math.ceil(turns * self._mean_seconds))

    async def _enter(self, deadline: float | None) -> None:
        if self._slots.locked() and self.waiting >= self._queue:
            raise ApiError(
                429,
                f"{self.running} searches are under way and {self.waiting} requests wait; come back later",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(self.retry_after)},
            )
        self.waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise out_of_time("while it waited for its turn") from None
        finally:
            self.waiting -= 1


def out_of_time(when: str) -> ApiError:
    """The answer to a request whose time was up before there was anything to answer with.

    Sending it again would take as long, so clients that repeat what failed are told not to.
    """
    return ApiError(
        504, f"the request's time was up {when}", param="timeout", code="timeout", headers={"x-should-retry": "false"}
    )
