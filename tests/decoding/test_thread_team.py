"""Threads of a team wait for each other, a second team does without, and no start of a thread is needed meanwhile."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep

import numpy as np
import numpy.typing as npt
import pytest

from decoding import thread_team
from decoding.compiled import compiled
from decoding.team_barrier import end_part, take_part, wait_for_parts, wait_for_team
from decoding.thread_team import run_in_team, share_parts

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
    started, may_end, calls = threading.Event(), threading.Event(), list[tuple[int, int]]()

    def hold(thread: int, num_threads: int, barrier: Ints) -> None:
        started.set()
        assert may_end.wait(60)

    with ThreadPoolExecutor(1) as other:
        first = other.submit(run_in_team, 2, hold)
        assert started.wait(60)
        run_in_team(2, record_thread, calls)
        may_end.set()
        first.result(60)
    run_in_team(2, record_thread, calls)
    assert calls[0] == (0, 1)
    assert sorted(calls[1:]) == [(0, 2), (1, 2)]


@compiled
def fill_stages(thread: int, num_threads: int, barrier: Ints, stage_P: Ints, wrong: Ints, num_stages: int) -> None:
    """Each part of a stage raises the number of its place by one, and looks whether all are in the stage before."""
    num_parts = len(stage_P)
    number = take_part(barrier)
    while number < num_stages * num_parts:
        stage, part = number // num_parts, number % num_parts
        wait_for_parts(barrier, stage * num_parts)
        wrong[thread] += stage_P[part] != stage or stage_P.min() < stage or stage_P.max() > stage + 1
        stage_P[part] += 1
        end_part(barrier)
        number = take_part(barrier)
    wait_for_parts(barrier, num_stages * num_parts)


@pytest.mark.parametrize("num_parts", [1, 2, 5])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_each_part_is_taken_once_and_after_the_stage_before(num_threads: int, num_parts: int) -> None:
    wrong = np.zeros(num_threads, dtype=np.int64)
    for num_stages in (1, 2, 300):
        stage_P = np.zeros(num_parts, dtype=np.int64)
        share_parts(num_threads, fill_stages, stage_P, wrong, num_stages)
        assert stage_P.tolist() == [num_stages] * num_parts
    assert not wrong.any()


def test_helper_that_comes_late_is_not_waited_for_and_finds_no_part() -> None:
    came, may_go, calls = threading.Event(), threading.Event(), list[tuple[int, int]]()
    wrong = np.zeros(2, dtype=np.int64)

    def come_late(thread: int, num_threads: int, barrier: Ints, stage_P: Ints) -> None:
        if thread:
            came.set()
            assert may_go.wait(60)
        fill_stages(thread, num_threads, barrier, stage_P, wrong, 3)

    stages = np.zeros((2, 4), dtype=np.int64)
    share_parts(2, come_late, stages[0])
    assert stages[0].tolist() == [3] * 4
    assert came.wait(60)
    share_parts(2, fill_stages, stages[1], wrong, 3)  # by this thread alone: the helper has its first call
    assert stages[1].tolist() == [3] * 4
    may_go.set()
    run_in_team(2, record_thread, calls)
    assert sorted(calls) == [(0, 2), (1, 2)]
    assert (stages == 3).all()


def test_parts_are_not_left_to_a_helper_when_this_thread_raises() -> None:
    ended = list[int]()

    def fail(thread: int, num_threads: int, barrier: Ints) -> None:
        if not thread:
            raise KeyboardInterrupt
        sleep(0.1)
        ended.append(thread)

    with pytest.raises(KeyboardInterrupt):
        share_parts(3, fail)
    assert sorted(ended) == [1, 2]


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

    run_team()
    child = multiprocessing.get_context("fork").Process(target=run_team)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_helper_keeps_nothing_of_a_call_that_has_ended() -> None:
    times_N, stale = np.zeros((2, 2), dtype=np.int64)
    alive = weakref.ref(times_N.base)
    run_in_team(2, count_stale_reads, times_N, stale, 3)
    del times_N, stale
    end = monotonic() + 30
    while alive() is not None and monotonic() < end:
        sleep(0.001)  # the helper answers before it lets go
    assert alive() is None


def test_error_of_a_helper_that_took_no_part_is_not_that_of_a_later_team() -> None:
    array = np.zeros(4, dtype=np.int64)
    alive = weakref.ref(array)

    def fail_in_helper(thread: int, num_threads: int, barrier: Ints, held: Ints) -> None:
        if thread:
            raise MemoryError("no room for arguments")

    share_parts(2, fail_in_helper, array)
    calls: list[tuple[int, int]] = []
    run_in_team(2, record_thread, calls)
    assert sorted(calls) == [(0, 2), (1, 2)]
    del array
    end = monotonic() + 30
    while alive() is not None and monotonic() < end:
        sleep(0.001)
    assert alive() is None
