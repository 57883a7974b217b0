"""Runs compiled code in several threads at once, for rounds that are long enough to pay for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from itertools import chain
from queue import SimpleQueue

from decoding.team_barrier import new_barrier


class HelperThread(threading.Thread):
    """A thread that makes one call after another, and ends with the process."""

    def __init__(self) -> None:
        super().__init__(name="decoder helper", daemon=True)
        self._calls: SimpleQueue[tuple[Callable[[], None], list[BaseException]]] = SimpleQueue()
        self._num_begun = self._num_ended = 0  # each is written by one thread
        self._ends: SimpleQueue[None] = SimpleQueue()
        self.start()

    @property
    def num_calls(self) -> int:
        """Calls that have not ended."""
        return self._num_begun - self._num_ended

    def begin(self, call: Callable[[], None], errors: list[BaseException]) -> None:
        """Has the thread make this call, after those before it, and add what it raises to `errors`."""
        self._ends = SimpleQueue()
        self._num_begun += 1
        self._calls.put((call, errors))

    def finish(self) -> None:
        """Waits for the end of all calls. A wait that was interrupted may be repeated."""
        while self.num_calls:  # not the queue alone: what an interrupted wait took from it is lost
            self._ends.get()

    def run(self) -> None:
        while True:
            call, errors = self._calls.get()
            try:
                call()
            except BaseException as error:
                errors.append(error)
            self._num_ended += 1
            self._ends.put(None)
            del call, errors  # while this thread waits, they would keep the weights and keys of a closed engine


_lock = threading.Lock()
_helpers: list[HelperThread] = []


def run_in_team(num_threads: int, function: Callable[..., None], *args: object) -> None:
    """Calls `function(thread, num_threads, barrier, *args)` for thread 0 to `num_threads - 1` at once; waits for all.

    The functions share the work by their number, and wait for each other at the barrier (`wait_for_team`). They hold no
    lock of Python and raise nothing before they have met for the last time: the others would wait for ever. While
    another team runs, which has the cores, or where the system starts no more threads, one thread does it all.
    """
    if num_threads > 1 and _lock.acquire(blocking=False):
        try:
            if _start_helpers(num_threads - 1):
                barrier, others = new_barrier(), _helpers[: num_threads - 1]
                errors: list[list[BaseException]] = [[] for _ in others]
                for thread, (other, of_other) in enumerate(zip(others, errors, strict=True), start=1):
                    other.begin(partial(function, thread, num_threads, barrier, *args), of_other)
                try:
                    function(0, num_threads, barrier, *args)
                finally:
                    _finish_all(others)
                for error in chain(*errors):
                    raise error
                return
        finally:
            _lock.release()
    function(0, 1, new_barrier(), *args)


def share_parts(num_threads: int, function: Callable[..., None], *args: object) -> None:
    """Calls `function(thread, num_threads, barrier, *args)` in this thread, number 0, and in helpers; waits for this
    one alone.

    The functions take parts of the work at the barrier (`take_part`) until none is left, raise nothing once they have
    taken one, and return when all parts have ended. A helper that begins after that finds none, and touches nothing.
    One that has had no core for two calls gets no third.
    """
    if num_threads > 1 and _lock.acquire(blocking=False):
        try:
            if _start_helpers(num_threads - 1):
                barrier, others = new_barrier(), [other for other in _helpers[: num_threads - 1] if other.num_calls < 2]
                try:
                    for thread, other in enumerate(others, start=1):
                        # what it raises goes: parts that it could not begin, the others have done
                        other.begin(partial(function, thread, num_threads, barrier, *args), [])
                    function(0, num_threads, barrier, *args)
                except BaseException:
                    # a signal, before this thread has begun: helpers do it all, and write to the arrays meanwhile
                    _finish_all(others)
                    raise
                return
        finally:
            _lock.release()
    function(0, num_threads, new_barrier(), *args)


def _finish_all(helpers: list[HelperThread]) -> None:
    """Waits for the calls of all helpers. Raises: what a signal raised meanwhile, at the end.

    Until then they write to the arrays of the call, and are not free for the next team.
    """
    interrupt: BaseException | None = None
    while True:
        try:
            for helper in helpers:
                helper.finish()
            break
        except BaseException as error:  # of a signal, such as KeyboardInterrupt
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _start_helpers(count: int) -> bool:
    """Starts threads until there are `count`; returns whether there are. They stay."""
    try:
        while len(_helpers) < count:
            _helpers.append(HelperThread())
    except RuntimeError:  # what Python makes of a system that gives no more
        return False
    return True


def forget_helpers() -> None:
    """Makes the next team start threads of its own."""
    global _lock
    _lock = threading.Lock()
    _helpers.clear()


# The threads of a process are not those of a process forked from it.
os.register_at_fork(after_in_child=forget_helpers)
