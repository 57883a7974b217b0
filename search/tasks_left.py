"""Waits for the tasks of a batch, which report their own ends."""

from __future__ import annotations

import asyncio


class TasksLeft:
    """Counts the ends of so many tasks, and wakes the search that waits for all of them.

    `asyncio.gather` has the event loop call back for each task, which takes as long as adding its step to the tree.
    A task that is cancelled before it has begun reports nothing: what cancels it calls `fail`.
    """

    def __init__(self, count: int) -> None:
        self._num_left = count
        self._error: BaseException | None = None
        self._end: asyncio.Future[None] | None = None  # of the wait

    def count_end(self) -> None:
        """Counts a task that has what it was started for. *Mutates*."""
        self._num_left -= 1
        if not self._num_left:
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Ends the wait with an error, if it is the first. *Mutates*."""
        self._error = self._error or error
        self._wake()

    async def wait(self) -> None:
        """Waits for the last task, or the first error. Raises: that error."""
        if self._num_left and self._error is None:
            self._end = asyncio.get_running_loop().create_future()
            await self._end
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        if self._end is not None and not self._end.done():  # done: an error was first, or the wait was cancelled
            self._end.set_result(None)
