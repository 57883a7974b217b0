"""Runs rounds in one worker thread while there is work, and hands results to whoever awaits them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import torch

from decoding import sequence
from decoding.core import Tokens
from decoding.scheduler import Scheduler
from decoding.threads import work_alone

log = logging.getLogger(__name__)

R = TypeVar("R")


class Task(sequence.Sequence, Generic[R]):
    """A sequence somebody waits for."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__(-1, tokens)
        self.future: Future[R] = Future()

    def resolve(self, result: R) -> None:
        """Hands over the result, unless nobody waits any more."""
        try:
            self.future.set_result(result)
        except InvalidStateError:
            assert self.future.cancelled()

    def fail(self, error: BaseException) -> None:
        """Hands over an error, unless nobody waits any more."""
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            assert self.future.cancelled()


T = TypeVar("T", bound=Task[Any])


class Driver(Generic[T]):
    """Feeds tasks to a scheduler and calls `step` until none is left.

    Only the worker thread touches the scheduler, its cache and its pages. Callers may be in any thread and on
    any event loop. An exception in `step` goes to the tasks that were running; the driver goes on with the rest.
    """

    def __init__(self, scheduler: Scheduler[T], step: Callable[[], None], *, name: str) -> None:
        self._scheduler, self._step = scheduler, step
        self._lock = threading.Lock()  # guards the four below
        self._inbox: list[T] = []
        self._arrivals = 0
        self._driving = False
        self._closed = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=work_alone)

    async def run(self, tasks: Sequence[T]) -> list[Any]:
        """The tasks' results, in order. Cancelling drops all of them before the next round.

        Raises: the first error of any task, after dropping the others; RuntimeError when closed.
        """
        self._submit(tasks)
        try:
            return list(await asyncio.gather(*(asyncio.wrap_future(task.future) for task in tasks)))
        finally:
            for task in tasks:  # only bites where the caller was cancelled or another task failed
                task.future.cancel()

    def call_idle(self, function: Callable[[], None]) -> None:
        """Calls `function` in the worker thread once no round is running, and waits for it."""
        if self._closed:
            function()
        else:
            self._worker.submit(function).result()

    def close(self) -> None:
        """Cancels what is in flight and ends the worker thread. Calling it twice is harmless."""
        with self._lock:
            self._closed = True
        self._worker.shutdown(wait=True)
        self._step = _nothing  # it leads back to its engine: a circle would keep model and KV until it is looked for

    def _submit(self, tasks: Sequence[T]) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine is closed")
            for task in tasks:
                task.arrival = self._arrivals
                self._arrivals += 1
            self._inbox += tasks
            if tasks and not self._driving:
                self._driving = True
                self._worker.submit(self._drive)

    def _drive(self) -> None:
        with torch.inference_mode():
            while self._take_in():
                try:
                    self._drop_cancelled()
                    self._step()
                except Exception as error:  # it is the callers' in flight, who get it; the engine lives on
                    log.debug("a round failed", exc_info=True)
                    self._fail(error)

    def _take_in(self) -> bool:
        """Moves new tasks to the queue; whether there is anything to do."""
        with self._lock:
            arrived, self._inbox = self._inbox, []
            for task in arrived:
                self._scheduler.enqueue(task)
            if self._closed:
                for task in (*self._scheduler.waiting, *self._scheduler.running):
                    task.future.cancel()
            self._driving = bool(self._scheduler.waiting or self._scheduler.running)
            return self._driving

    def _drop_cancelled(self) -> None:
        for task in (*self._scheduler.waiting, *self._scheduler.running):
            if task.future.cancelled():
                self._scheduler.leave(task, keep_kv=True)

    def _fail(self, error: Exception) -> None:
        """Hands `error` to everybody who was running, or, if nobody was, to everybody: no error repeats for ever."""
        failed = self._scheduler.abandon_running()
        if not failed:
            failed, self._scheduler.waiting = self._scheduler.waiting, []
        for task in failed:
            task.fail(error)


def _nothing() -> None:
    """The step of a driver that is closed."""
