"""Streams the events of a running search to another event loop than the one it runs on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from typing import TypeAlias

from decoding.core import Usage
from reason.problem import Problem, Solution
from reason.solver import Solver
from reason.thinking import SplitText
from search.seeds import derive_seed
from search.strategy import Budget, StepEvent

KEEP_ALIVE_S = 15.0

SearchEvents: TypeAlias = AsyncGenerator[StepEvent | SplitText | Solution | None, None]


async def search_events(solver: Solver, problem: Problem, *, is_live: bool = False) -> SearchEvents:
    """Yields each new step, then the solution; None after every `KEEP_ALIVE_S` seconds without an event.

    `is_live` says that its search is of one solution, whose text so far is yielded in place of steps.

    Closing the generator cancels the search. Raises: what solving raises.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[StepEvent | Future[Solution] | None] = asyncio.Queue()
    text: SplitText | None = None  # the latest one, for which None is in the queue: a slow client gets no older ones

    def enqueue_event(event: StepEvent | Future[Solution]) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, event)

    def put_text(latest: SplitText) -> None:
        nonlocal text
        if text is None:
            queue.put_nowait(None)
        text = latest

    def enqueue_text(latest: SplitText) -> None:
        loop.call_soon_threadsafe(put_text, latest)

    solver = solver.with_options(on_text=enqueue_text) if is_live else solver.with_options(on_step=enqueue_event)
    future = solver.submit(problem)
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
            if event is None:
                latest, text = text, None
                yield latest
            else:
                yield event
    finally:
        future.cancel()


async def valid_search_events(solver: Solver, problem: Problem, attempts: int) -> SearchEvents:
    """Yields the events of searches until one has a candidate that votes, then its solution, with the usage of all.

    At most `attempts` searches, each with a seed of its own, within one budget; the last one may have none that votes.
    """
    spent, began = Usage(), time.monotonic()
    for attempt in range(attempts):
        budget = _subtract_usage(solver.budget, spent, time.monotonic() - began)
        seed = solver.seed if attempt == 0 else derive_seed(solver.seed, "attempt", attempt)
        solution = None
        async with aclosing(search_events(solver.with_options(budget=budget, seed=seed), problem)) as events:
            async for event in events:
                if isinstance(event, Solution):
                    solution = event
                else:
                    yield event
        assert solution is not None, "a search ends with a solution"
        spent += solution.usage
        is_spent = _subtract_usage(solver.budget, spent, time.monotonic() - began) is None
        if solution.answer is not None or attempt == attempts - 1 or is_spent:
            yield replace(solution, result=replace(solution.result, usage=spent))
            return


def _subtract_usage(budget: Budget, spent: Usage, seconds: float) -> Budget | None:
    """Returns what is left of a budget; None where one of its limits is reached."""
    used = {"tokens": spent.tokens, "calls": spent.calls, "forwards": spent.forwards, "seconds": seconds}
    left = {name: limit - used[name] for name, limit in vars(budget).items() if limit is not None}
    return replace(budget, **left) if all(limit > 0 for limit in left.values()) else None
