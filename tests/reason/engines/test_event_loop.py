"""The thread with an event loop ends, whatever its tasks do about their cancellation."""

import asyncio
import threading

from reason.engines.event_loop import EventLoopThread


def test_close_ends_a_task_that_misses_its_cancellation() -> None:
    thread, started, ended = EventLoopThread(), threading.Event(), threading.Event()

    async def miss_one() -> None:
        try:
            started.set()
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    thread.submit(miss_one())
    assert started.wait(60)
    closing = threading.Thread(target=thread.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    assert ended.is_set()


def test_close_ends_the_tasks_that_a_cancelled_task_starts() -> None:
    thread, started, ended = EventLoopThread(), threading.Event(), threading.Event()
    late: list[asyncio.Task[None]] = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async def start_another() -> None:
        try:
            started.set()
            await asyncio.sleep(3600)
        finally:
            late.append(asyncio.create_task(wait_for_ever()))
            await asyncio.sleep(0)

    thread.submit(start_another())
    assert started.wait(60)
    thread.close()
    assert ended.is_set()
    assert late[0].cancelled()
