"""Engines compute in one thread, take helper threads for long rounds, and do not change other threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from decoding import threads
from decoding.engine_loop import EngineLoop
from decoding.kv.kv_cache import KVCache
from decoding.kv.sequence import TokenSequence
from decoding.kv.slots import SlotPool
from decoding.model.device_stream import DeviceStream
from decoding.scheduler import Scheduler
from decoding.threads import MIN_PARALLEL_PRODUCTS, use_one_thread, with_helper_threads

TASKS = Path("/proc/self/task")
LONG = MIN_PARALLEL_PRODUCTS  # weights of which one row is worth help


@pytest.fixture
def three_threads() -> Iterator[ThreadPoolExecutor]:
    """A thread with three torch threads on any machine."""
    with open_worker(3) as thread:
        yield thread


def open_worker(num_threads: int) -> ThreadPoolExecutor:
    """Returns a thread with so many torch threads on any machine."""

    def set_number() -> None:
        torch.get_num_threads()  # torch's own choice comes first
        threads.limit_threads(num_threads)

    return ThreadPoolExecutor(max_workers=1, initializer=set_number)


def count_threads() -> tuple[int, int, int]:
    """Threads for a short pass, for a long one, and after it."""
    with with_helper_threads(1000, num_tokens=16):
        short = torch.get_num_threads()
    with with_helper_threads(LONG, num_tokens=1):
        long = torch.get_num_threads()
    return short, long, torch.get_num_threads()


def test_worker_uses_one_thread_and_its_former_number_for_a_long_round(
    three_threads: ThreadPoolExecutor,
) -> None:
    three_threads.submit(use_one_thread).result()
    assert three_threads.submit(count_threads).result() == (1, 3, 1)


def test_threads_without_the_setting_keep_their_number(three_threads: ThreadPoolExecutor) -> None:
    assert three_threads.submit(count_threads).result() == (3, 3, 3)


def test_round_is_long_from_a_product_of_weights_and_tokens_on(three_threads: ThreadPoolExecutor) -> None:
    def many(weights: int, rows: int) -> int:
        with with_helper_threads(weights, rows):
            return torch.get_num_threads()

    three_threads.submit(use_one_thread).result()
    assert [three_threads.submit(many, 2_000_000, rows).result() for rows in (1, 64, 2000)] == [1, 1, 3]
    assert [three_threads.submit(many, 500_000_000, rows).result() for rows in (1, 64)] == [3, 3]


def test_compiled_round_uses_the_more_threads_the_longer_it_is(three_threads: ThreadPoolExecutor) -> None:
    three_threads.submit(use_one_thread).result()
    small = [three_threads.submit(threads.count_threads, 1_800_000, tokens).result() for tokens in (1, 64, 200, 1024)]
    assert small == [1, 1, 2, 3]
    assert three_threads.submit(threads.count_threads, 500_000_000, 1).result() == 3


def test_threads_that_take_rows_pay_earlier_and_have_some_rows_each(three_threads: ThreadPoolExecutor) -> None:
    three_threads.submit(use_one_thread).result()

    def ask(weights: int, rows: int) -> tuple[int, int]:
        with threads.having_work(), open_worker(3) as other, give_work(other):
            count = threads.count_sharing_threads(weights, rows)
            return count, other.submit(threads.choose_threads, 8).result()

    counts = [three_threads.submit(ask, *sizes).result() for sizes in ((1_800_000, 8), (1_800_000, 16), (10**9, 17))]
    assert counts == [(1, 2), (2, 1), (2, 1)], "the other worker gets what this one leaves"


def test_no_rows_are_shared_while_another_process_compiles(
    monkeypatch: pytest.MonkeyPatch, three_threads: ThreadPoolExecutor
) -> None:
    three_threads.submit(use_one_thread).result()
    counts = list[int]()
    for is_taken in (False, True, False):
        monkeypatch.setattr(threads, "is_compiling_drafts", partial(bool, is_taken))
        counts.append(three_threads.submit(threads.count_sharing_threads, 10**9, 100).result())
    assert counts == [3, 1, 3]


@contextmanager
def give_work(worker: ThreadPoolExecutor) -> Iterator[None]:
    """Counts a thread among the workers that have work."""
    work = threads.having_work()
    worker.submit(work.__enter__).result()
    yield
    worker.submit(work.__exit__, None, None, None).result()


def test_workers_that_have_work_divide_the_threads_among_them(three_threads: ThreadPoolExecutor) -> None:
    three_threads.submit(use_one_thread).result()

    def ask(useful: int) -> int:
        with threads.having_work():
            return threads.choose_threads(useful)

    counts = [three_threads.submit(ask, 8).result()]
    with ExitStack() as others:
        for _ in range(3):
            others.enter_context(give_work(others.enter_context(ThreadPoolExecutor(max_workers=1))))
            counts.append(three_threads.submit(ask, 8).result())
    assert counts == [3, 2, 1, 1], "one for each of the others, and at least one"
    assert three_threads.submit(ask, 8).result() == 3


def test_worker_has_the_threads_of_its_last_call(three_threads: ThreadPoolExecutor) -> None:
    three_threads.submit(use_one_thread).result()
    counts = list[tuple[int, int]]()
    with open_worker(3) as other, give_work(other):
        for useful in (2, 1, 0):
            of_other = other.submit(threads.choose_threads, useful).result()
            counts.append((of_other, three_threads.submit(threads.choose_threads, 8).result()))
    assert counts == [(2, 1), (1, 2), (1, 2)]


def test_workers_with_much_work_have_equal_shares() -> None:
    with open_worker(8) as engine, open_worker(8) as reader, give_work(engine):
        alone = engine.submit(threads.choose_threads, 100).result()
        with give_work(reader):
            both = [worker.submit(threads.choose_threads, 100).result() for worker in (reader, engine, reader)]
            of_engine = engine.submit(threads.choose_threads, 1).result()
            of_reader = reader.submit(threads.choose_threads, 100).result()
    assert (alone, both, of_engine, of_reader) == (8, [4, 4, 4], 1, 7)


def test_engine_loop_uses_one_thread_and_its_caller_keeps_its_threads() -> None:
    thread_counts: list[int] = []
    before = torch.get_num_threads()
    scheduler: Scheduler[TokenSequence] = Scheduler(
        KVCache(SlotPool(1000)), max_running_requests=1, max_batched_tokens=1
    )
    stream = DeviceStream(scheduler, torch.device("cpu"))
    loop: EngineLoop[TokenSequence, None] = EngineLoop(scheduler, lambda: (), name="test", stream=stream)
    loop.call_when_idle(lambda: thread_counts.append(torch.get_num_threads()))
    loop.close()
    assert thread_counts == [1]
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not TASKS.exists(), reason="counts this process's threads as Linux lists them")
def test_openmp_library_uses_one_thread_too() -> None:
    """The number that torch reports alone proves nothing."""

    def count_helpers(begin: Callable[[], None]) -> int:
        def product() -> int:
            begin()
            before = set(TASKS.iterdir())
            torch.randn(700, 700) @ torch.randn(700, 700)
            return len(set(TASKS.iterdir()) - before)

        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(product).result()

    assert count_helpers(use_one_thread) == 0
    assert count_helpers(lambda: None) == torch.get_num_threads() - 1
