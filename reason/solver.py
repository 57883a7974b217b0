"""Solves one problem, or many concurrently: renders the prompt, runs the search, extracts the answer from the tree."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from numbers import Integral
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol, Self, TypeVar

from decoding.core import Engine, TokenGenerator, Tokens
from decoding.validation import MAX_INT, require_count
from reason.concurrency import ConcurrencyWindow, SolveOutcome
from reason.engines.constrained import ConstrainedGenerator
from reason.engines.event_loop import EventLoopThread
from reason.engines.growing_text import GrowingTextGenerator
from reason.engines.top_tokens import TopTokenRecorder
from reason.grading.answer import canonical_answer, find_answer
from reason.problem import Problem, Solution
from reason.problem_resources import make_problem_text, make_reader, make_thought_budget
from reason.prompt import Prompt
from reason.scorers.base import ComparingScorer, Scorer
from reason.scorers.oracle import OracleScorer
from reason.scorers.part import read_part
from reason.scorers.thought_verifier import ThoughtVerifier
from reason.thinking import SolutionReader, SplitText, ThinkingFormat
from reason.trust import TrustRule
from search.probes import EarlyExit
from search.seeds import derive_seed
from search.selection import Selection
from search.steps import DelimiterSteps, StepRule
from search.strategies.tournament import hold_tournament
from search.strategy import (
    Budget,
    EarlierSamples,
    Resources,
    SearchResult,
    StepEmbedder,
    StepEvent,
    StepScorer,
    Strategy,
)
from search.voting import TOURNAMENT

T = TypeVar("T")
SearchEvent = StepEvent | Selection | Solution
"""Of a running search: new steps, a decision over open branches, and last the solution."""


class EngineFactory(Protocol):
    """Makes an engine for each problem, as a router over two models does; the solver that owns it closes it."""

    def bind(self, question: str, root: Tokens, scorer: StepScorer | None) -> TokenGenerator:
        """Returns the engine for the problem whose prompt is `root`; `scorer` is bound to that problem."""
        ...

    def assert_invariants(self) -> None:
        """See `core.Engine`."""
        ...

    def close(self) -> None:
        """Closes its engines, the target engine included."""
        ...


class Solver:
    """Solves problems with one strategy, engine, scorer and prompt. Threads and asyncio tasks may share a solver.

    All searches run on one private event loop, so that blocking and awaiting callers share one engine, which batches
    their requests. A problem's result depends on the run's seed and the problem's id, not on concurrent problems
    (unless a budget of seconds, or of forward passes with speculation, ends it).
    A solver belongs to the process of its first problem: in a fork of it every use raises RuntimeError, and `close`
    leaves the engine alone.

    router          generates instead of `engine` where a small and a large model write together; None: `engine` alone
    step_rule       where a step ends; None: at the prompt format's delimiter
    budget          limits each problem
    concurrency     maximum concurrent problems in `solve_many`
    context_window  maximum tokens per sequence of the model
    end_tokens      ids with which the model ends every text
    scorer_timeout  seconds a path waits for its scores
    scorer_reads    the part of a path that the scorer reads: `thought` (all of it), `answer` or `window`
    scorer_window   tokens of such a window
    thinking        how the model marks its thoughts; None: it writes none
    ends_thoughts   whether thoughts are ended at their budget; the engine must be able to continue a text
    early_exit      when a thought ends before its budget; None: when the model ends it
    verifier        reads thoughts for `early_exit`, where that has a `verifier_model`
    embedder        compares steps; only some strategies need one
    trust           says which answers are trusted; None: nothing is said

    >>> import reason
    >>> with reason.load("search.n=4") as solver:                           # the bundled models
    ...     solution = solver.solve("What is the remainder when 7^2 is divided by 5?")
    >>> len(solution.result.candidates), solution.answer in solution.votes
    (4, True)
    """

    def __init__(
        self,
        *,
        strategy: Strategy,
        engine: Engine,
        router: EngineFactory | None = None,
        scorer: Scorer,
        scorer_timeout: float | None = None,
        scorer_reads: str = "thought",
        scorer_window: int = 4096,
        embedder: StepEmbedder | None = None,
        prompt: Prompt,
        step_rule: StepRule | None = None,
        find_answer: Callable[[str], str | None] = find_answer,
        budget: Budget | None = None,
        seed: int = 0,
        concurrency: int = 8,
        context_window: int | None = None,
        end_tokens: frozenset[int] = frozenset(),
        thinking: ThinkingFormat | None = None,
        ends_thoughts: bool = True,
        early_exit: EarlyExit | None = None,
        verifier: ThoughtVerifier | None = None,
        trust: TrustRule | None = None,
    ) -> None:
        if early_exit is not None and early_exit.verifier_model is not None and verifier is None:
            raise ValueError(f"early_exit has thoughts read by a model ({early_exit.verifier_model}); give a verifier")
        self.strategy = strategy
        self.engine = engine
        self.router = router
        self.scorer = scorer
        self.scorer_timeout = scorer_timeout
        self.scorer_reads = scorer_reads
        self.scorer_window = scorer_window
        self.embedder = embedder
        self.prompt = prompt
        self.step_rule = step_rule or DelimiterSteps(delimiter=prompt.format.delimiter)
        self.budget = budget or Budget()
        self.seed = seed
        self.concurrency = concurrency
        self.context_window = context_window
        self.end_tokens = end_tokens
        self.thinking = thinking
        self.ends_thoughts = ends_thoughts
        self.early_exit = early_exit
        self.verifier = verifier
        self.trust = trust or TrustRule()
        self.on_step: Callable[[StepEvent], None] | None = None
        self.on_selection: Callable[[Selection], None] | None = None
        self.on_text: Callable[[SplitText], None] | None = None
        self._find_answer = find_answer
        self._loop = EventLoopThread()

    def with_options(
        self,
        *,
        strategy: Strategy | None = None,
        budget: Budget | None = None,
        seed: int | None = None,
        on_step: Callable[[StepEvent], None] | None = None,
        on_selection: Callable[[Selection], None] | None = None,
        on_text: Callable[[SplitText], None] | None = None,
        scorer: Scorer | None = None,
        trust: TrustRule | None = None,
    ) -> Solver:
        """Returns this solver with another strategy, budget or seed; models, engine and loop are shared.

        One `close` ends both; the closed solver's own scorer is closed, so a `scorer` given here should hold nothing.
        `on_step` is called with every generated continuation, `on_selection` with every decision
        over open branches; on the solver's event loop, so they must return quickly. So must `on_text`, which is called
        with the solution so far while it is written, by a search of one solution whose engine's settings have
        `tells_tokens`.

        >>> import reason
        >>> with reason.load("search.n=4") as solver:
        ...     other = solver.with_options(strategy=solver.strategy, seed=1)
        >>> other.engine is solver.engine, other.seed, solver.seed
        (True, 1, 0)

        Raises: ValueError for a wrong seed; TypeError for what is no search or no budget.
        """
        if seed is not None:
            seed = int(seed) if isinstance(seed, Integral) else seed  # NumPy's too
            require_count("seed", seed, at_least=-MAX_INT - 1, at_most=MAX_INT)
        if strategy is not None and not callable(strategy):
            raise TypeError(f"strategy must be a search, such as BestOfN(n=8), got {strategy!r}")
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget must be a Budget, such as Budget(tokens=4000), got {budget!r}")
        other = copy.copy(self)
        other.strategy = self.strategy if strategy is None else strategy
        other.budget = self.budget if budget is None else budget
        other.seed = self.seed if seed is None else seed
        other.scorer = self.scorer if scorer is None else scorer
        other.trust = self.trust if trust is None else trust
        other.on_step = self.on_step if on_step is None else on_step
        other.on_selection = self.on_selection if on_selection is None else on_selection
        other.on_text = self.on_text if on_text is None else on_text
        return other

    def solve(self, question: str | Problem) -> Solution:
        """Returns the solution; blocks. Works inside a running event loop too (a notebook)."""
        future = self.submit(question)
        try:
            return future.result()
        except BaseException:  # an interrupt while waiting must also end the search
            future.cancel()
            raise

    async def asolve(self, question: str | Problem) -> Solution:
        """Awaits the solution. Cancelling the await cancels the search and frees its KV."""
        return await asyncio.wrap_future(self.submit(question))

    def submit(self, question: str | Problem, earlier: EarlierSamples | None = None) -> Future[Solution]:
        """Starts the search and returns at once; cancelling the future cancels the search and frees its KV.

        It goes on from `earlier` solutions of this problem, if its strategy has `continues_samples`.
        """
        return self._loop.submit(self._solve(_as_problem(question), earlier))

    def stream(self, question: str | Problem) -> Iterator[SearchEvent]:
        """Yields what happens in the search while it happens, and last its solution.

        Closing the iterator ends the search.

        >>> import reason
        >>> with reason.load("search.n=4") as solver:
        ...     events = solver.stream("What is the remainder when 7^2 is divided by 5?")
        ...     names = [type(event).__name__ for event in events]
        >>> sorted(set(names)), names[-1]
        (['Solution', 'StepEvent'], 'Solution')
        """
        events: SimpleQueue[StepEvent | Selection | Future[Solution]] = SimpleQueue()
        future = self.with_options(on_step=events.put, on_selection=events.put).submit(question)
        future.add_done_callback(events.put)
        try:
            while not isinstance(event := events.get(), Future):
                yield event
            yield event.result()
        finally:
            future.cancel()

    async def astream(self, question: str | Problem) -> AsyncIterator[SearchEvent]:
        """Yields what `stream` yields, for `async for`."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[StepEvent | Selection | Future[Solution]] = asyncio.Queue()

        def put(event: StepEvent | Selection | Future[Solution]) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        future = self.with_options(on_step=put, on_selection=put).submit(question)
        future.add_done_callback(put)
        try:
            while not isinstance(event := await events.get(), Future):
                yield event
            yield event.result()
        finally:
            future.cancel()

    def solve_many(
        self, questions: Iterable[str | Problem], submit: Callable[[Problem], Future[Solution]] | None = None
    ) -> Iterator[SolveOutcome]:
        """Yields each problem with its solution, or with the exception that ended it, in order of completion.

        At most `concurrency` problems run at a time; closing the iterator cancels them. `submit` starts a problem in
        place of this solver's own method.
        """
        window = ConcurrencyWindow(map(_as_problem, questions), self.concurrency, submit or self.submit)
        try:
            while window.start_tasks():
                yield from window.collect_outcomes(wait(window.running, return_when=FIRST_COMPLETED).done)
        finally:
            window.cancel_all()

    async def asolve_many(self, questions: Iterable[str | Problem]) -> AsyncIterator[SolveOutcome]:
        """Yields what `solve_many` yields, for `async for`."""

        def start(problem: Problem) -> asyncio.Future[Solution]:
            return asyncio.wrap_future(self.submit(problem))

        window = ConcurrencyWindow(map(_as_problem, questions), self.concurrency, start)
        try:
            while window.start_tasks():
                done, _ = await asyncio.wait(window.running, return_when=asyncio.FIRST_COMPLETED)
                for outcome in window.collect_outcomes(done):
                    yield outcome
        finally:
            window.cancel_all()

    def run_coroutine(self, work: Coroutine[object, object, T]) -> T:
        """Returns the result of a coroutine that uses the engine, run on the solver's event loop; blocks."""
        return self._loop.run(work)

    def assert_invariants(self) -> None:
        """Asserts that the engine, once idle, holds nothing for any search."""
        (self.router or self.engine).assert_invariants()

    def close(self) -> None:
        """Cancels running searches, ends the event loop, closes scorer and engine. Calling it twice is harmless."""
        self._loop.close()
        self.scorer.close()
        if self.verifier is not None:
            self.verifier.close()
        (self.router or self.engine).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _solve(self, problem: Problem, earlier: EarlierSamples | None = None) -> Solution:
        root = problem.prompt or self.prompt.encode(problem.question)
        reader = make_reader(self.prompt, self.thinking, root)
        read_answer = problem.read_answer or self.extract_answer

        def extract_answer(solution: str) -> str | None:
            return read_answer(reader.answer_part(solution))

        scorer = self._bind_scorer(problem, root, reader, extract_answer)
        engine = self.engine if self.router is None else self.router.bind(problem.question, root, scorer)
        if problem.json_schema is not None:
            engine = ConstrainedGenerator(engine, problem.json_schema)
        if (on_text := self.on_text) is not None:
            engine = GrowingTextGenerator(
                engine, self.prompt.decode, len(root), lambda text: on_text(reader.split_beginning(text))
            )
        recorder = TopTokenRecorder(engine, problem.num_alternatives) if problem.num_alternatives else None
        thought = None
        if self.ends_thoughts:
            thought = make_thought_budget(
                self.prompt, problem, reader, self.early_exit, self.verifier, self.extract_answer
            )
        resources = Resources(
            engine=engine if recorder is None else recorder,
            scorer=scorer,
            decode=self.prompt.decode,
            extract_answer=extract_answer,
            step_rule=self.step_rule,
            thought=thought,
            problem_text=make_problem_text(self.prompt, problem, root, reader, ends_thoughts=self.ends_thoughts),
            budget=self.budget,
            seed=derive_seed(self.seed, problem.id),
            group=problem.id,
            context_window=self.context_window,
            end_tokens=self.end_tokens,
            embedder=self.embedder,
            scorer_timeout=self.scorer_timeout,
            num_top=max(self.scorer.num_top, self.step_rule.num_top, getattr(self.strategy, "num_top", 0)),
            earlier=earlier,
            on_step=self.on_step,
            on_selection=self.on_selection,
        )
        result = await self.strategy(root, resources)
        if self.strategy.select == TOURNAMENT:
            result = await self._hold_tournament(problem, result, reader)
        solution = self._to_solution(problem, result, reader)
        return solution if recorder is None else replace(solution, top_tokens=recorder.top_tokens)

    def _bind_scorer(
        self, problem: Problem, root: Tokens, reader: SolutionReader, extract_answer: Callable[[str], str | None]
    ) -> StepScorer | None:
        """Returns the scorer of one problem, which reads the part of a path that `scorer_reads` names."""
        scorer: StepScorer | None
        if isinstance(self.scorer, OracleScorer):
            scorer = self.scorer.bind_problem(problem, extract_answer)
        else:
            scorer = self.scorer.bind(problem.question, root)
        return None if scorer is None else read_part(scorer, self.scorer_reads, self.scorer_window, reader)

    async def _hold_tournament(self, problem: Problem, result: SearchResult, reader: SolutionReader) -> SearchResult:
        """Has the scorer's judge choose among the answers of a search, within what is left of its seconds."""
        if not isinstance(self.scorer, ComparingScorer) or self.scorer.tournament is None:
            raise ValueError(f"search.select={TOURNAMENT} has a judge compare solutions; choose scorer=judge")

        def read_text(node: int) -> str:
            thought, text, is_finished = reader.split(result.tree.path_text(node))
            return (text.strip() if is_finished else "") or thought.strip()

        limit = self.budget.seconds
        return await hold_tournament(
            result,
            self.scorer.bind_referee(problem.question),
            self.scorer.tournament,
            read_text=read_text,
            timeout=self.scorer_timeout,
            seconds_left=None if limit is None else limit - result.usage.seconds,
        )

    def extract_answer(self, text: str) -> str | None:
        """Returns the final answer in a text without thought, in the canonical form that voting compares, or None."""
        answer = self._find_answer(text)
        return (canonical_answer(answer) or None) if answer is not None else None

    def _to_solution(self, problem: Problem, result: SearchResult, reader: SolutionReader) -> Solution:
        full_text = "" if result.best is None else result.tree.path_text(result.best)
        thought, text, _ = reader.split(full_text)
        answer = (problem.read_answer or self.extract_answer)(reader.answer_part(full_text))
        return Solution(
            problem=problem,
            answer=answer,
            text=text,
            score=result.score,
            result=result,
            thought=thought,
            reader=reader,
            is_trusted=self.trust.judge(answer, result.score, result.votes),
        )


def _as_problem(question: str | Problem) -> Problem:
    return question if isinstance(question, Problem) else Problem.from_question(question)
