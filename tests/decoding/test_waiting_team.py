"""Helpers that wait in compiled code share a call's parts; the call ends without those that have not begun."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from decoding.compiled import compiled_in_place
from decoding.helper_calls import (
    ASLEEP,
    CALLED,
    IDLE,
    RECORD_SIZE,
    call_helpers,
    dismiss_helpers,
    end_call,
    new_states,
    note_arguments,
    open_pipe,
    view_arguments,
    wait_for_call,
    wake_helpers,
)
from decoding.team_barrier import end_part, new_barrier, take_part, wait_for_parts
from decoding.thread_team import WaitingTeam, find_team
from tests.support.teams import require_here_and_in_fork, running_team

Ints = npt.NDArray[np.int64]


@compiled_in_place
def fill_stages(
    thread: int, num_threads: int, barrier: Ints, stage_P: Ints, by_P: Ints, num_stages: int, waits: int
) -> None:
    """Each part of a stage raises the number of its place by one, if all places are in this stage or just after it.

    waits  for some milliseconds for so many parts to have been begun, each part of the last stage
    """
    num_parts = len(stage_P)
    number = take_part(barrier)
    while number < num_stages * num_parts:
        stage, part = number // num_parts, number % num_parts
        wait_for_parts(barrier, stage * num_parts)
        is_right = stage_P[part] == stage
        for other in range(num_parts):
            is_right &= stage <= stage_P[other] <= stage + 1
        stage_P[part] += is_right
        by_P[part] = thread
        if waits and stage == num_stages - 1:
            looks = 0
            while stage_P.sum() < (num_stages - 1) * num_parts + waits and looks < 10**5:
                looks += 1
                take_nothing(barrier)
        end_part(barrier)
        number = take_part(barrier)
    wait_for_parts(barrier, num_stages * num_parts)


@compiled_in_place
def take_nothing(barrier: Ints) -> None:
    """Looks at the barrier, as a thread that waits does."""
    wait_for_parts(barrier, 0)


@compiled_in_place
def run_stages(thread: int, num_threads: int, barrier: Ints, states: Ints, record: Ints, *rest: Any) -> None:
    if len(states) == 0:
        fill_stages(thread, num_threads, barrier, *rest)
    elif thread == 0:
        note_arguments(record, (num_threads, barrier, *rest))
        call_helpers(states, num_threads - 1)
        fill_stages(thread, num_threads, barrier, *rest)
        dismiss_helpers(states, num_threads - 1)
    else:
        while True:
            wait_for_call(states, thread - 1)
            fill_stages(thread, *view_arguments(record, (num_threads, barrier, *rest)))
            end_call(states, thread - 1)


def share(team: WaitingTeam, num_threads: int, num_parts: int, num_stages: int, waits: int = 0) -> Ints:
    """Returns which thread took each part of the last stage."""
    stage_P, by_P = np.zeros((2, num_parts), dtype=np.int64)
    team.share_parts(num_threads, stage_P, by_P, num_stages, waits)
    assert stage_P.tolist() == [num_stages] * num_parts
    return by_P


def is_helped(team: WaitingTeam) -> bool:
    """Returns whether a helper takes a part of a call, or of one of the next ones: one that is about to go may not."""
    return any(1 in share(team, 2, num_parts=2, num_stages=1, waits=2) for _ in range(1000))


@pytest.mark.parametrize("num_parts", [1, 2, 5])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 64])
def test_each_part_is_taken_once_and_after_the_stage_before(num_threads: int, num_parts: int) -> None:
    team = WaitingTeam(run_stages)
    for num_stages in (1, 2, 300, 1, 1, 1, 300):
        share(team, num_threads, num_parts, num_stages)


def test_helper_comes_to_the_call_for_which_it_is_woken_and_to_the_next_ones() -> None:
    team = WaitingTeam(run_stages)
    for _ in range(20):
        assert is_helped(team)


def test_helper_that_comes_late_is_not_waited_for() -> None:
    came, may_go = threading.Event(), threading.Event()

    def come_late(thread: int, *args: Any) -> None:
        if thread:
            came.set()
            assert may_go.wait(60)
        run_stages(thread, *args)

    team = WaitingTeam(come_late)
    assert not share(team, 2, num_parts=4, num_stages=3).any()
    assert came.wait(60)
    assert not share(team, 2, num_parts=4, num_stages=3).any()
    may_go.set()
    assert is_helped(team)


def test_one_thread_does_it_while_another_team_runs() -> None:
    with running_team():
        assert not share(WaitingTeam(run_stages), 2, num_parts=4, num_stages=3).any()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_has_helpers_of_its_own() -> None:
    def run_team() -> None:
        assert is_helped(find_team("stages", run_stages))

    require_here_and_in_fork(run_team)


def test_helpers_keep_nothing_of_a_call() -> None:
    team = WaitingTeam(run_stages)
    stage_P, by_P = np.zeros((2, 2), dtype=np.int64)
    alive = weakref.ref(stage_P.base)
    team.share_parts(2, stage_P, by_P, 1, 2)
    del stage_P, by_P
    assert alive() is None


@pytest.fixture
def states() -> Iterator[Ints]:
    """States of one helper, which has a pipe."""
    states = new_states(1)
    assert open_pipe(states, 0)
    pipe = states[1:3].tolist()
    os.set_blocking(pipe[0], False)  # for the tests that read it; a helper blocks
    yield states
    for end in pipe:
        os.close(end)


def count_bytes(states: Ints) -> int:
    try:
        return len(os.read(states[1], 100))
    except BlockingIOError:
        return 0


@pytest.mark.parametrize(("act", "after"), [(wake_helpers, IDLE), (call_helpers, CALLED)])
def test_a_byte_wakes_a_helper_that_sleeps_and_no_other(
    states: Ints, act: Callable[[Ints, int], None], after: int
) -> None:
    states[0] = ASLEEP
    act(states, 1)
    assert (states[0], count_bytes(states)) == (after, 1)
    states[0] = IDLE
    act(states, 1)
    assert (states[0], count_bytes(states)) == (after, 0)
    dismiss_helpers(states, 1)
    assert (states[0], count_bytes(states)) == (IDLE, 0)


def wait_until(holds: Callable[[], bool]) -> bool:
    """Returns whether it holds within a minute."""
    end = monotonic() + 60
    while not holds() and monotonic() < end:
        sleep(0.001)
    return holds()


@compiled_in_place
def count_calls(states: Ints, counts: Ints, most: int) -> None:
    """Begins so many calls; counts those that it has begun, and those whose number is another one when it has."""
    while counts[0] < most:
        wait_for_call(states, 0)
        begun = counts[2]
        counts[0] += 1
        for _ in range(20_000):  # some 50 us
            take_nothing(counts)
            counts[1] += counts[2] != begun
        end_call(states, 0)


def test_helper_sleeps_until_it_is_called_whatever_wakes_it(states: Ints) -> None:
    os.set_blocking(int(states[1]), True)
    counts = np.zeros(32, dtype=np.int64)
    helper = threading.Thread(target=count_calls, args=(states, counts, 4), daemon=True)
    helper.start()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        for count in range(1, 5):
            assert wait_until(lambda: states[0] == ASLEEP)
            if count == 2:
                wake_helpers(states, 1)
                assert wait_until(lambda: states[0] == ASLEEP)  # no call came
            if count == 3:
                assert helper.ident is not None
                signal.pthread_kill(helper.ident, signal.SIGUSR1)  # ends a read
                os.write(states[2], b"x")  # as if left of an earlier call
                sleep(0.01)
                assert states[0] == ASLEEP
            call_helpers(states, 1)
            assert wait_until(lambda: counts[0] == count)  # noqa: B023
            dismiss_helpers(states, 1)
            assert states[0] in (IDLE, ASLEEP)
    finally:
        signal.signal(signal.SIGUSR1, before)
    helper.join(60)
    assert not helper.is_alive()


def test_no_call_runs_once_it_is_dismissed(states: Ints) -> None:
    os.set_blocking(int(states[1]), True)
    counts, most = np.zeros(32, dtype=np.int64), 300
    helper = threading.Thread(target=count_calls, args=(states, counts, most), daemon=True)
    helper.start()
    end = monotonic() + 60
    while counts[0] < most and monotonic() < end:
        call_helpers(states, 1)
        for _ in range(int(counts[2]) % 4 * 1000):  # for some calls it has begun then, which ends the wait
            if states[0] != CALLED:
                break
        dismiss_helpers(states, 1)
        counts[2] += 1  # from here on the call may not run
    helper.join(60)
    assert not helper.is_alive()
    assert counts[:2].tolist() == [most, 0]


def test_call_is_taken_back_from_helpers_that_are_not_there() -> None:
    states = new_states(3)
    call_helpers(states, 2)
    wait_for_call(states, 1)  # the call is there
    end_call(states, 1)
    dismiss_helpers(states, 2)
    wake_helpers(states, 3)
    assert not states.any()  # all are idle


def test_work_is_done_without_helpers_that_the_system_or_an_error_denies(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def deny() -> tuple[int, int]:
        raise OSError("too many open files")

    def fail_in_helper(thread: int, *args: Any) -> None:
        if thread:
            raise MemoryError("no room for arguments")
        run_stages(thread, *args)

    team = WaitingTeam(fail_in_helper)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pipe", deny)
        assert not share(team, 2, num_parts=4, num_stages=3).any()

    def is_logged() -> bool:
        assert not share(team, 2, num_parts=4, num_stages=3).any()
        return "no room for arguments" in caplog.text

    assert wait_until(is_logged)
    for _ in range(20):
        assert is_logged()
        sleep(0.001)
    assert caplog.text.count("MemoryError: no room") == 1  # it was not begun again


@compiled_in_place
def add_up(record: Ints, numbers: Ints, factor: int, nothing: None, records: Any, floats: Any) -> float:
    note_arguments(record, (numbers, factor, nothing, records, floats))
    values, times, _, parts, others = view_arguments(record, (numbers[:0], factor, nothing, records[:0], floats[:0]))
    total = 0.0
    for i in range(len(values)):
        total += values[i] * times
    for i in range(len(parts)):
        total += parts[i].size
    for i in range(len(others)):
        total += others[i]
    return total


def test_arguments_are_those_that_were_noted() -> None:
    records = np.array([(1, 2.5), (3, 4.5)], dtype=[("number", np.int64), ("size", np.float64)])
    floats = np.array([0.25, 0.5], dtype=np.float32)
    record = np.zeros(RECORD_SIZE, dtype=np.int64)
    assert add_up(record, np.arange(5), -3, None, records, floats) == -30 + 7 + 0.75
    assert not new_barrier().any()


@compiled_in_place
def note_number(record: Ints, number: float) -> None:
    note_arguments(record, (number,))


def test_arguments_that_a_record_cannot_have_are_refused() -> None:
    with pytest.raises(Exception, match="helpers take integers and contiguous arrays, not float64"):
        note_number(np.zeros(RECORD_SIZE, dtype=np.int64), 0.5)
