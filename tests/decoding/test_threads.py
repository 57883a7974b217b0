"""Engines compute in their own thread, take helpers for long rounds, and leave everybody else's threads alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from decoding import threads
from decoding.engine_loop import Driver, Task
from decoding.kv.kv_cache import SharedKV
from decoding.kv.slots import PagePool
from decoding.scheduler import Scheduler
from decoding.threads import WORTH_HELP, helped, work_alone

TASKS = Path("/proc/self/task")
LONG = WORTH_HELP  # weights of which one row is worth help


@pytest.fixture
def of_three() -> Iterator[ThreadPoolExecutor]:
    """A thread that torch gives three threads, whatever this machine has."""

    def have_three() -> None:
        torch.get_num_threads()  # torch's own choice comes first
        threads.threads(3)

    with ThreadPoolExecutor(max_workers=1, initializer=have_three) as thread:
        yield thread


def counts() -> tuple[int, int, int]:
    """Threads for a short pass, for a long one, and after it."""
    with helped(1000, rows=16):
        short = torch.get_num_threads()
    with helped(LONG, rows=1):
        long = torch.get_num_threads()
    return short, long, torch.get_num_threads()


def test_a_worker_computes_alone_and_takes_as_many_helpers_as_it_had_for_a_long_round(
    of_three: ThreadPoolExecutor,
) -> None:
    of_three.submit(work_alone).result()
    assert of_three.submit(counts).result() == (1, 3, 1)


def test_only_a_worker_is_held_to_anything(of_three: ThreadPoolExecutor) -> None:
    assert of_three.submit(counts).result() == (3, 3, 3)


def test_what_is_long_counts_the_weights_as_well_as_the_rows(of_three: ThreadPoolExecutor) -> None:
    def many(weights: int, rows: int) -> int:
        with helped(weights, rows):
            return torch.get_num_threads()

    of_three.submit(work_alone).result()
    assert [of_three.submit(many, 2_000_000, rows).result() for rows in (1, 64, 2000)] == [1, 1, 3]
    assert [of_three.submit(many, 500_000_000, rows).result() for rows in (1, 64)] == [3, 3]


def test_a_driver_works_alone_and_its_caller_keeps_its_threads() -> None:
    seen: list[int] = []
    before = torch.get_num_threads()
    pool = SharedKV(PagePool.of_bytes(1 << 10, 1))
    driver: Driver[Task[None]] = Driver(Scheduler(pool, max_running=1, max_rows=1), lambda: None, name="test")
    driver.call_idle(lambda: seen.append(torch.get_num_threads()))
    driver.close()
    assert seen == [1]
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not TASKS.exists(), reason="counts this process's threads as Linux lists them")
def test_the_library_of_matrix_products_keeps_to_it_too() -> None:
    """It has its own mind about threads: what torch says of them is not all."""

    def helpers_called(begin: Callable[[], None]) -> int:
        def product() -> int:
            begin()
            before = set(TASKS.iterdir())
            torch.randn(700, 700) @ torch.randn(700, 700)
            return len(set(TASKS.iterdir()) - before)

        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(product).result()

    assert helpers_called(work_alone) == 0
    assert helpers_called(lambda: None) == torch.get_num_threads() - 1
