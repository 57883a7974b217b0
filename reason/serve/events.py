"""A search as it goes on, seen from another event loop than the one it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import TypeAlias

from reason.problem import Problem, Solution
from reason.solver import Solver
from search.strategy import Written

QUIET_S = 15.0

Events: TypeAlias = AsyncGenerator[Written | Solution | None, None]


async def watched(solver: Solver, problem: Problem) -> Events:
    """What the search writes, as it is written, and at last the solution; None where it was quiet for `QUIET_S`.

    Closing the generator cancels the search. Raises: what solving raises.
    """
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[Written | Future[Solution]] = asyncio.Queue()

    def tell(what: Written | Future[Solution]) -> None:
        loop.call_soon_threadsafe(news.put_nowait, what)

    future = solver.but(watch=tell).submit(problem)
    future.add_done_callback(tell)
    try:
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    what = await news.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(what, Future):
                yield what.result()
                return
            yield what
    finally:
        future.cancel()
