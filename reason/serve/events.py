"""Streams the events of a running search to another event loop than the one it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import TypeAlias

from reason.problem import Problem, Solution
from reason.solver import Solver
from search.strategy import StepEvent

KEEP_ALIVE_S = 15.0

SearchEvents: TypeAlias = AsyncGenerator[StepEvent | Solution | None, None]


async def search_events(solver: Solver, problem: Problem) -> SearchEvents:
    """Yields each new step, then the solution; None after every `KEEP_ALIVE_S` seconds without an event.

    Closing the generator cancels the search. Raises: what solving raises.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[StepEvent | Future[Solution]] = asyncio.Queue()

    def enqueue_event(event: StepEvent | Future[Solution]) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, event)

    future = solver.with_options(on_step=enqueue_event).submit(problem)
    future.add_done_callback(enqueue_event)
    try:
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    event = await queue.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(event, Future):
                yield event.result()
                return
            yield event
    finally:
        future.cancel()
