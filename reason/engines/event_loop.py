"""Runs an event loop in its own thread, so that blocking and awaiting callers can share one engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import TypeVar

from decoding.fork import ForkGuard

_CANCEL_AGAIN_S = 1.0

T = TypeVar("T")


class EventLoopThread:
    """A thread that runs coroutines; works inside and outside a running loop.

    The thread starts with the first coroutine and ends with `close`. A forked process has no copy of it: there, every
    coroutine is refused and `close` does nothing.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._fork_guard = ForkGuard()

    @property
    def is_forked(self) -> bool:
        """Whether the thread runs in another process, of which this one is a fork."""
        return self._fork_guard.is_forked

    def require_process(self) -> None:
        """Checks that a thread may start, or runs, in this process. Raises: RuntimeError in a fork of the thread's."""
        self._fork_guard.claim_process()

    def submit(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Starts `work` on the loop. *Mutates*: starts the thread if it is not running.

        Raises: RuntimeError in a fork of the process with the thread, after closing `work`.
        """
        try:
            self.require_process()
        except RuntimeError:
            work.close()
            raise
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="reason-loop", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Blocks until the result is there. An interrupt while waiting cancels the work."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Coroutine[object, object, T]) -> T:
        """Awaits the result from any loop. Cancelling the await cancels the work."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Cancels what is running and ends the thread; safe to call twice. *Mutates*: the next use starts a new one."""
        if self.is_forked:
            return
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        # Stop only after the tasks have ended: their `finally` blocks still need the loop.
        asyncio.run_coroutine_threadsafe(_cancel_all_tasks(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_all_tasks() -> None:
    # Again and again: a task may miss a cancellation (Python 3.11's `wait_for` does where its result has just come) or
    # start another one. The pause is for what a cancelled task still has to do, such as taking back its requests.
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)


async def gather_or_cancel(work: Sequence[Coroutine[object, object, T]]) -> list[T]:
    """Returns the results, in order. Raises: the first error, after cancelling the rest."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        # `gather` leaves the others running after an error; they must be gone before the caller sees it.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
