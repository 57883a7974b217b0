"""Keep a bounded number of problems under way, whoever waits for them and however."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import islice
from typing import Generic, TypeVar

from reason.problem import Problem, Solution

Outcome = tuple[Problem, Solution | Exception]
Handle = TypeVar("Handle", "Future[Solution]", "asyncio.Future[Solution]")


class Window(Generic[Handle]):
    """Starts at most `size` problems at a time, in order; takes in the next when one is done."""

    def __init__(self, problems: Iterable[Problem], size: int, start: Callable[[Problem], Handle]) -> None:
        self._waiting = iter(problems)
        self._size = size
        self._start: Callable[[Problem], Handle] = start
        self.running: dict[Handle, Problem] = {}

    def fill(self) -> bool:
        """Start what there is room for; False once nothing is running and nothing waits. *Mutates* the window."""
        for problem in islice(self._waiting, self._size - len(self.running)):
            self.running[self._start(problem)] = problem
        return bool(self.running)

    def take(self, done: set[Handle]) -> list[Outcome]:
        """The outcomes of `done`, in the order they were started. *Mutates* the window.

        Raises: what is not an `Exception`: a cancelled search is nobody's outcome.
        """
        outcomes: list[Outcome] = []
        for handle in [handle for handle in self.running if handle in done]:
            problem = self.running.pop(handle)
            error = handle.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            outcomes.append((problem, error or handle.result()))
        return outcomes

    def cancel(self) -> None:
        """Give up what is running."""
        for handle in self.running:
            handle.cancel()
