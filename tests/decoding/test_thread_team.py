"""Threads of a team wait for each other, a second team does without, and no start of a thread is needed meanwhile."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Iterator
from time import monotonic, sleep

import numpy as np
import numpy.typing as npt
import pytest

from decoding import thread_team
from decoding.compiled import compiled
from decoding.team_barrier import wait_for_team
from decoding.thread_team import run_in_team
from tests.support.teams import require_here_and_in_fork, running_team

Ints = npt.NDArray[np.int64]


@compiled
def count_stale_reads(thread: int, num_threads: int, barrier: Ints, times_N: Ints, stale: Ints, count: int) -> None:
    """Each thread writes the number of the time, all meet, and it looks whether the others have."""
    for time in range(1, count + 1):
        times_N[thread] = time
        wait_for_team(barrier, num_threads)
        for other in range(num_threads):
            stale[thread] += times_N[other] != time
        wait_for_team(barrier, num_threads)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_what_a_thread_wrote_before_a_barrier_all_read_after_it(num_threads: int) -> None:
    times_N, stale = np.zeros((2, num_threads), dtype=np.int64)
    for _ in range(5):
        run_in_team(num_threads, count_stale_reads, times_N, stale, 300)
    assert times_N.tolist() == [300] * num_threads
    assert not stale.any()


def record_thread(thread: int, num_threads: int, barrier: Ints, calls: list[tuple[int, int]]) -> None:
    calls.append((thread, num_threads))


def test_every_thread_of_a_team_gets_its_number() -> None:
    calls: list[tuple[int, int]] = []
    run_in_team(3, record_thread, calls)
    assert sorted(calls) == [(0, 3), (1, 3), (2, 3)]


def test_second_team_is_one_thread_while_the_first_runs() -> None:
    calls: list[tuple[int, int]] = []
    with running_team():
        run_in_team(2, record_thread, calls)
    run_in_team(2, record_thread, calls)
    assert calls[0] == (0, 1)
    assert sorted(calls[1:]) == [(0, 2), (1, 2)]


@pytest.fixture
def no_helpers_yet() -> Iterator[None]:
    thread_team.forget_helpers()
    yield
    thread_team.forget_helpers()


def test_one_thread_does_it_where_the_system_starts_no_more(
    no_helpers_yet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started, calls = threading.Thread.start, list[object](), list[tuple[int, int]]()

    def start_one(self: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_one)
        run_in_team(3, record_thread, calls)
        assert calls == [(0, 1)]
        run_in_team(2, record_thread, calls)  # there is a helper for two
        assert sorted(calls[1:]) == [(0, 2), (1, 2)]
    run_in_team(3, record_thread, calls)
    assert sorted(calls[3:]) == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize("failing", [(0,), (1,), (1, 2), (0, 1, 2)])
def test_error_of_any_thread_is_raised_and_the_next_team_is_whole(failing: tuple[int, ...]) -> None:
    def fail(thread: int, num_threads: int, barrier: Ints) -> None:
        if thread in failing:
            raise ValueError(f"thread {thread}")

    with pytest.raises(ValueError, match=f"thread {failing[0]}"):
        run_in_team(3, fail)
    calls: list[tuple[int, int]] = []
    run_in_team(2, record_thread, calls)
    assert sorted(calls) == [(0, 2), (1, 2)]


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    """Set once this process has had its signal to end, which raises KeyboardInterrupt."""
    event = threading.Event()

    def note_and_raise(number: int, frame: object) -> None:
        event.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note_and_raise)
    yield event
    signal.signal(signal.SIGINT, before)


def test_interrupt_is_raised_when_all_threads_have_ended(interrupted: threading.Event) -> None:
    main, waits, returned = threading.get_ident(), threading.Event(), threading.Event()
    ended: list[int] = []

    def interrupt_others(thread: int, num_threads: int, barrier: Ints) -> None:
        if thread == 0:
            waits.set()
            return
        assert waits.wait(60)
        if thread == 1:
            sleep(0.05)  # so that the interrupt finds the first thread waiting for this one
            signal.pthread_kill(main, signal.SIGINT)
        assert interrupted.wait(60)
        returned.wait(0.2)
        ended.append(thread)

    with pytest.raises(KeyboardInterrupt):
        run_in_team(3, interrupt_others)
    ended_before = sorted(ended)
    returned.set()
    assert ended_before == [1, 2]
    calls: list[tuple[int, int]] = []
    run_in_team(3, record_thread, calls)
    assert sorted(calls) == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_starts_threads_of_its_own() -> None:
    def run_team() -> None:
        calls: list[tuple[int, int]] = []
        run_in_team(2, record_thread, calls)
        assert sorted(calls) == [(0, 2), (1, 2)]

    require_here_and_in_fork(run_team)


def test_helper_keeps_nothing_of_a_call_that_has_ended() -> None:
    times_N, stale = np.zeros((2, 2), dtype=np.int64)
    alive = weakref.ref(times_N.base)
    run_in_team(2, count_stale_reads, times_N, stale, 3)
    del times_N, stale
    end = monotonic() + 30
    while alive() is not None and monotonic() < end:
        sleep(0.001)  # the helper answers before it lets go
    assert alive() is None
