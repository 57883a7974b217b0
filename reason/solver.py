"""Solve one problem, or many at once: render it, search, read the answer off the tree."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import TracebackType
from typing import Any, Self, TypeVar

from decoding.core import Engine
from reason.engines.event_loop import LoopThread
from reason.grading.answer import canonical, find_answer
from reason.problem import Problem, Solution
from reason.prompt import Prompt
from reason.routing.engine import Arbitrage
from reason.scorers.base import Scorer
from reason.window import Outcome, Window
from search.seeds import derive_seed
from search.strategy import Budget, Embedder, Resources, SearchResult, Strategy, Written

T = TypeVar("T")


class Solver:
    """A strategy, an engine, a scorer and a prompt, ready to solve. Safe to share between threads and tasks.

    All work runs on one private event loop, so that blocking and awaiting callers meet on one engine, which batches
    whatever is waiting. A problem's result depends on the run's seed and the problem's id, not on its company.

    budget          holds for each problem
    concurrency     problems under way in `solve_many`
    window          the most tokens the model can hold
    scorer_timeout  seconds a path may wait for its scores
    embedder        for strategies that compare steps

    >>> import reason
    >>> with reason.load("search.n=4") as solver:                           # the bundled models
    ...     solution = solver.solve("What is the remainder when 7^2 is divided by 5?")
    >>> len(solution.result.candidates), solution.answer in solution.votes, solution.tree.check()
    (4, True, None)
    """

    def __init__(
        self,
        *,
        strategy: Strategy,
        engine: Engine | Arbitrage,
        scorer: Scorer,
        scorer_timeout: float | None = None,
        embedder: Embedder | None = None,
        prompt: Prompt,
        find: Callable[[str], str | None] = find_answer,
        budget: Budget | None = None,
        seed: int = 0,
        concurrency: int = 8,
        window: int | None = None,
    ) -> None:
        self.strategy = strategy
        self.engine = engine
        self.scorer = scorer
        self.scorer_timeout = scorer_timeout
        self.embedder = embedder
        self.prompt = prompt
        self.budget = budget or Budget()
        self.seed = seed
        self.concurrency = concurrency
        self.window = window
        self.watch: Callable[[Written], None] | None = None
        self._find = find
        self._loop = LoopThread()

    def but(
        self,
        *,
        strategy: Strategy | None = None,
        budget: Budget | None = None,
        seed: int | None = None,
        watch: Callable[[Written], None] | None = None,
    ) -> Solver:
        """This solver with another strategy, budget or seed; models, engine and loop are the same, and one `close` ends
        both. `watch` is told of every continuation as it is written, on the solver's loop: it must be quick.

        >>> import reason
        >>> with reason.load("search.n=4") as solver:
        ...     other = solver.but(strategy=solver.strategy, seed=1)
        >>> other.engine is solver.engine, other.seed, solver.seed
        (True, 1, 0)
        """
        other = copy.copy(self)
        other.strategy = self.strategy if strategy is None else strategy
        other.budget = self.budget if budget is None else budget
        other.seed = self.seed if seed is None else seed
        other.watch = self.watch if watch is None else watch
        return other

    def solve(self, question: str | Problem) -> Solution:
        """The solution; blocks. Works inside a running event loop too (a notebook)."""
        return self._loop.run(self._solve(_as_problem(question)))

    async def asolve(self, question: str | Problem) -> Solution:
        """The solution; awaits. Cancelling gives back what the search held."""
        return await self._loop.arun(self._solve(_as_problem(question)))

    def submit(self, question: str | Problem) -> Future[Solution]:
        """Start solving and return at once; cancelling the future gives back what the search held."""
        return self._loop.submit(self._solve(_as_problem(question)))

    def solve_many(self, questions: Iterable[str | Problem]) -> Iterator[Outcome]:
        """Each problem with its solution, or with the error that stopped it, as they finish.

        At most `concurrency` are under way; closing the iterator cancels them.
        """
        window = Window(map(_as_problem, questions), self.concurrency, self.submit)
        try:
            while window.fill():
                yield from window.take(wait(window.running, return_when=FIRST_COMPLETED).done)
        finally:
            window.cancel()

    async def asolve_many(self, questions: Iterable[str | Problem]) -> AsyncIterator[Outcome]:
        """As `solve_many`, for `async for`."""

        def start(problem: Problem) -> asyncio.Future[Solution]:
            return asyncio.wrap_future(self.submit(problem))

        window = Window(map(_as_problem, questions), self.concurrency, start)
        try:
            while window.fill():
                for outcome in window.take((await asyncio.wait(window.running, return_when="FIRST_COMPLETED"))[0]):
                    yield outcome
        finally:
            window.cancel()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that uses the engine, on the solver's own loop; blocks."""
        return self._loop.run(work)

    def check(self) -> None:
        """Assert that the engine, once idle, holds nothing of any search. Not all engines can be asked."""
        check = getattr(self.engine, "check", None)
        if check is not None:
            check()

    def close(self) -> None:
        """Cancel what is under way, end the private loop, close engine and scorer. Calling it twice is harmless."""
        self._loop.close()
        self.scorer.close()
        close = getattr(self.engine, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _solve(self, problem: Problem) -> Solution:
        root = problem.prompt or self.prompt.encode(problem.question)
        scorer = self.scorer.bind(problem.question, root)
        engine = self.engine
        if isinstance(engine, Arbitrage):
            engine = engine.bind(problem.question, root, scorer)
        resources = Resources(
            engine=engine,
            scorer=scorer,
            decode=self.prompt.decode,
            answer_of=self.answer_of,
            delimiter=self.prompt.form.delimiter,
            budget=self.budget,
            seed=derive_seed(self.seed, problem.id),
            group=problem.id,
            window=self.window,
            embedder=self.embedder,
            scorer_timeout=self.scorer_timeout,
            watch=self.watch,
        )
        return self._read(problem, await self.strategy(root, resources))

    def answer_of(self, text: str) -> str | None:
        """The final answer in a solution's text, in the spelling under which votes are counted, or None."""
        found = self._find(text)
        return (canonical(found) or None) if found is not None else None

    def _read(self, problem: Problem, result: SearchResult) -> Solution:
        text = "" if result.best is None else result.tree.text(result.best)
        return Solution(problem=problem, answer=self.answer_of(text), text=text, score=result.score, result=result)


def _as_problem(question: str | Problem) -> Problem:
    return question if isinstance(question, Problem) else Problem.ask(question)
