"""Runs rounds in one worker thread while there are requests, and returns results to callers in any thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, TypeVar

import torch

from decoding.fork import ForkGuard
from decoding.kv.sequence import TokenSequence
from decoding.model.device_stream import DeviceStream
from decoding.scheduler import Scheduler
from decoding.threads import having_work, use_one_thread

log = logging.getLogger(__name__)

S = TypeVar("S", bound=TokenSequence)
R = TypeVar("R")


class EngineLoop(Generic[S, R]):
    """Submits sequences to a scheduler and calls `run_round` until none is left.

    Only the worker thread touches the scheduler, its cache and its slots. Callers may be in any thread and on any
    event loop. An exception in a round fails the running sequences; the loop continues with the others. In a fork of
    the process with the worker thread, calls raise RuntimeError and `close` does nothing.

    run_round  runs one round and yields each sequence that ended, already out of the scheduler, with its result.
               A generator: results yielded before the round breaks still reach their callers.
    stream     the device's, on which all rounds run
    """

    def __init__(
        self,
        scheduler: Scheduler[S],
        run_round: Callable[[], Iterable[tuple[S, R]]],
        *,
        name: str,
        stream: DeviceStream,
    ) -> None:
        self._scheduler, self._run_round, self._stream = scheduler, run_round, stream
        self._futures: dict[int, asyncio.Future[R]] = {}  # by arrival; this and the next of the worker thread alone
        self._outcomes: list[tuple[asyncio.Future[R], R | BaseException]] = []  # of the round, not told yet
        self._cancelled = deque[S]()  # since the last look: asking every future in every round took longer than many do
        self._num_cancelled = 0  # of these, the ones that the scheduler has had
        self._fork_guard = ForkGuard()
        self._lock = threading.Lock()  # guards the four fields below
        self._inbox: list[tuple[S, asyncio.Future[R]]] = []
        self._arrivals = 0
        self._has_work = False
        self._closed = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=use_one_thread)

    async def run_requests(self, sequences: Sequence[S]) -> list[R]:
        """Returns the results, in order. Cancelling drops all of the sequences before the next round.

        Raises: the first error of any sequence, after dropping the others; RuntimeError when closed or forked.
        """
        futures = self._submit_requests(sequences)
        try:
            return await asyncio.gather(*futures)
        finally:
            # none is left unless the caller was cancelled or another sequence failed
            for sequence, future in zip(sequences, futures, strict=True):
                if future.cancel() or future.cancelled():
                    self._cancelled.append(sequence)

    def call_when_idle(self, function: Callable[[], None]) -> None:
        """Calls `function` in the worker thread once no round is running, and waits for it. Raises: RuntimeError when
        forked."""
        self._fork_guard.claim_process()
        if self._closed:
            function()
        else:
            self._worker.submit(function).result()

    def close(self) -> None:
        """Cancels what is in flight and ends the worker thread. Calling it twice is harmless."""
        if self._fork_guard.is_forked:
            return
        with self._lock:
            self._closed = True
        self._worker.shutdown(wait=True)
        # The bound method refers to its engine: a cycle would keep model and KV until the garbage collector runs.
        self._run_round = _run_no_round

    def _submit_requests(self, sequences: Sequence[S]) -> list[asyncio.Future[R]]:
        self._fork_guard.claim_process()
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine is closed")
            futures: list[asyncio.Future[R]] = []
            for sequence in sequences:
                sequence.arrival = self._arrivals
                self._arrivals += 1
                futures.append(loop.create_future())
                self._inbox.append((sequence, futures[-1]))
            # `_has_work` changes under this lock only: otherwise the worker could stop right after this test.
            if sequences and not self._has_work:
                self._has_work = True
                self._worker.submit(self._run_until_idle)
            return futures

    def _run_until_idle(self) -> None:
        with torch.inference_mode(), self._stream.use(), having_work():
            while self._accept_submitted():
                try:
                    self._drop_cancelled()
                    for sequence, result in self._run_round():
                        self._outcomes.append((self._futures.pop(sequence.arrival), result))
                except Exception as error:  # goes to the callers of the running sequences; the engine stays usable
                    log.debug("a round failed", exc_info=True)
                    self._fail_requests(error)
                self._tell_callers()

    def _accept_submitted(self) -> bool:
        """Moves submitted sequences to the scheduler's queue; returns whether there is anything to run."""
        with self._lock:
            # those cancelled later may still be in the next inbox
            self._num_cancelled = len(self._cancelled)
            submitted, self._inbox = self._inbox, []
            for sequence, future in submitted:
                self._futures[sequence.arrival] = future
                self._scheduler.add_waiting(sequence)
            if self._closed:
                self._drop_all()
            self._has_work = bool(self._scheduler.waiting or self._scheduler.running)
            return self._has_work

    def _drop_cancelled(self) -> None:
        for _ in range(self._num_cancelled):
            sequence = self._cancelled.popleft()
            if self._futures.pop(sequence.arrival, None) is not None:  # else it ended before
                self._scheduler.remove_sequence(sequence)

    def _drop_all(self) -> None:
        for sequence in (*self._scheduler.waiting, *self._scheduler.running):
            self._scheduler.remove_sequence(sequence)
            self._outcomes.append((self._futures.pop(sequence.arrival), asyncio.CancelledError()))
        self._tell_callers()

    def _fail_requests(self, error: Exception) -> None:
        """Fails all running sequences, or the waiting ones if none runs, so that a persistent error cannot loop."""
        failed = self._scheduler.abort_running()
        if not failed:
            failed, self._scheduler.waiting = self._scheduler.waiting, []
        self._outcomes += [(self._futures.pop(sequence.arrival), error) for sequence in failed]

    def _tell_callers(self) -> None:
        """Gives the callers what the round has ended, all of one event loop together: to wake a thread takes long."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[R], R | BaseException]]] = {}
        for future, outcome in self._outcomes:
            by_loop.setdefault(future.get_loop(), []).append((future, outcome))
        self._outcomes.clear()
        for loop, outcomes in by_loop.items():
            # a loop that was closed meanwhile waits for nothing
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_set_outcomes, outcomes)


def _set_outcomes(outcomes: Iterable[tuple[asyncio.Future[R], R | BaseException]]) -> None:
    for future, outcome in outcomes:
        if future.done():  # the caller was cancelled during the round
            continue
        if isinstance(outcome, asyncio.CancelledError):
            future.cancel()
        elif isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _run_no_round() -> tuple[()]:
    """Replaces the round of a closed loop."""
    return ()
