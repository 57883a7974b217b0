"""Runs compiled code in several threads at once, for rounds that are long enough to pay for it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from queue import SimpleQueue

import numpy as np

from decoding.helper_calls import NO_STATES, RECORD_SIZE, new_states, open_pipe, wake_helpers
from decoding.team_barrier import new_barrier

log = logging.getLogger(__name__)


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
_teams: dict[str, WaitingTeam] = {}


def run_in_team(num_threads: int, function: Callable[..., None], *args: object) -> None:
    """Calls `function(thread, num_threads, barrier, *args)` for thread 0 to `num_threads - 1` at once; waits for all.

    The functions share the work by their number, and wait for each other at the barrier (`wait_for_team`). They hold no
    lock of Python and raise nothing before they have met for the last time: the others would wait for ever. While
    another team runs, which has the cores, or where the system starts no more threads, one thread does it all.
    """
    if num_threads > 1 and _lock.acquire(blocking=False):
        try:
            if _start_helpers(_helpers, num_threads - 1):
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


class WaitingTeam:
    """Helpers that wait in compiled code for the next call of `function` (see `helper_calls`).

    function  compiled: `function(thread, num_threads, barrier, states, record, *args)`. Thread 0 calls the others
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._helpers: list[HelperThread] = []
        self._errors: list[BaseException] = []
        self._most = os.cpu_count() or 1  # asking takes as long as a tenth of a small pass
        self._states, self._record = new_states(self._most), np.zeros(2 * RECORD_SIZE, dtype=np.int64)

    def wake(self, num_threads: int) -> None:
        """Wakes the helpers of a call that follows at once, so that it need not wait for them."""
        wake_helpers(self._states, num_threads - 1)

    def share_parts(self, num_threads: int, *args: object) -> None:
        """Calls the function with these arguments in this thread, number 0, and in helpers; waits for this one alone.

        The threads take parts of the work at the barrier (`take_part`) until none is left, and return when all parts
        have ended. Helpers that begin after that find no call. Threads have numbers up to `num_threads`, however many
        take part.
        """
        if num_threads == 1 or not _lock.acquire(blocking=False):
            self._function(0, num_threads, new_barrier(), NO_STATES, self._record, *args)
            return
        try:
            self._add_helpers(min(num_threads - 1, self._most), args)
            self._function(0, num_threads, new_barrier(), self._states, self._record, *args)
        finally:
            _lock.release()

    def _add_helpers(self, count: int, args: Sequence[object]) -> None:
        while self._errors:  # parts that it could not begin, the others have done
            log.warning("a helper thread of forward passes has failed", exc_info=self._errors.pop())
        helpers, states = self._helpers, self._states
        while len(helpers) < count and open_pipe(states, len(helpers)) and _start_helpers(helpers, len(helpers) + 1):
            # arrays of the same types; those of the call would stay in memory
            like = (np.empty(0, arg.dtype) if isinstance(arg, np.ndarray) else arg for arg in args)
            call = partial(self._function, len(helpers), 1, new_barrier(), states, self._record, *like)
            helpers[-1].begin(call, self._errors)


def find_team(name: str, function: Callable[..., None]) -> WaitingTeam:
    """Returns the team of this name, the same until the process forks. Calls of one team have the same types."""
    team = _teams.get(name)
    return _teams.setdefault(name, WaitingTeam(function)) if team is None else team


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


def _start_helpers(helpers: list[HelperThread], count: int) -> bool:
    """Starts threads until there are `count`; returns whether there are. They stay."""
    try:
        while len(helpers) < count:
            helpers.append(HelperThread())
    except RuntimeError:  # what Python makes of a system that gives no more
        return False
    return True


def forget_helpers() -> None:
    """Makes the next team start threads of its own."""
    global _lock
    _lock = threading.Lock()
    _helpers.clear()
    _teams.clear()


# The threads of a process are not those of a process forked from it.
os.register_at_fork(after_in_child=forget_helpers)
