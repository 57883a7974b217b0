"""Limits how many problems are solved at a time, for callers that block and callers that await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import islice
from typing import Generic, TypeVar

from reason.problem import Problem, Solution

SolveOutcome = tuple[Problem, Solution | Exception]
SolveFuture = TypeVar("SolveFuture", "Future[Solution]", "asyncio.Future[Solution]")


class ConcurrencyWindow(Generic[SolveFuture]):
    """Runs at most `size` problems at a time, in order; starts the next one when one is done."""

    def __init__(self, problems: Iterable[Problem], size: int, start: Callable[[Problem], SolveFuture]) -> None:
        self._waiting = iter(problems)
        self._size = size
        self._start: Callable[[Problem], SolveFuture] = start
        self.running: dict[SolveFuture, Problem] = {}

    def start_tasks(self) -> bool:
        """Starts problems until `size` run; returns False once none runs and none waits. *Mutates* the window."""
        for problem in islice(self._waiting, self._size - len(self.running)):
            self.running[self._start(problem)] = problem
        return bool(self.running)

    def collect_outcomes(self, done: set[SolveFuture]) -> list[SolveOutcome]:
        """Returns the outcomes of `done`, in the order they were started. *Mutates* the window.

        Raises: exceptions that are not an `Exception`, such as a cancellation: they belong to the caller.
        """
        outcomes: list[SolveOutcome] = []
        for future in [future for future in self.running if future in done]:
            problem = self.running.pop(future)
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            outcomes.append((problem, error or future.result()))
        return outcomes

    def cancel_all(self) -> None:
        """Cancels the running problems."""
        for future in self.running:
            future.cancel()
