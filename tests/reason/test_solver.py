"""A solver returns the same solutions from any thread or loop, one at a time or concurrently."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from decoding.core import Generation, GenerationRequest
from reason.problem import Problem, Solution
from reason.scorers.none import NoScorer
from reason.solver import SearchEvent, Solver
from search.selection import Selection
from search.strategies.beam_search import BeamSearch
from search.strategies.self_consistency import SelfConsistency
from search.strategy import Budget, StepEvent
from tests.support.fakes import EngineWithoutModel
from tests.support.toy_search import ToyEngine
from tests.support.toy_solver import toy_solver

PROBLEMS = [Problem(id=f"p{i}", question=f"What is {i}?") for i in range(9)]


class CountingEngine(ToyEngine):
    """Counts concurrent calls, and the problems that they belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[str] = []
        self.most = self.most_problems = 0

    @property
    def now(self) -> int:
        return len(self.under_way)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.under_way.append(requests[0].group)
        self.most = max(self.most, self.now)
        self.most_problems = max(self.most_problems, len(set(self.under_way)))
        try:
            await asyncio.sleep(0.01)
            return await super().generate(requests)
        finally:
            self.under_way.remove(requests[0].group)


def plain(solution: Solution) -> tuple[object, ...]:
    return solution.problem.id, solution.answer, solution.text, solution.score, solution.votes, solution.tree.to_dict()


def test_solution_fields_equal_those_of_the_tree() -> None:
    with toy_solver() as one:
        solution = one.solve("What is 3?")
    assert solution.result.best is not None
    assert solution.text == solution.tree.path_text(solution.result.best)
    assert f"boxed{{{solution.answer}}}" in solution.text
    assert solution.score == max(solution.votes.values()) == solution.votes[solution.answer or ""]
    assert solution.usage.calls == 4
    assert solution.problem.question == "What is 3?"


def test_solve_and_asolve_agree_also_inside_a_running_loop() -> None:
    async def within(one: Solver) -> tuple[Solution, Solution]:
        return one.solve(PROBLEMS[0]), await one.asolve(PROBLEMS[0])

    with toy_solver() as one:
        expected = plain(one.solve(PROBLEMS[0]))
        assert [plain(s) for s in asyncio.run(within(one))] == [expected] * 2


def test_concurrent_problems_do_not_change_a_solution() -> None:
    with toy_solver() as one:
        alone = [plain(one.solve(problem)) for problem in PROBLEMS]
        outcomes = {p.id: s for p, s in one.solve_many(reversed(PROBLEMS))}
    assert [plain(outcomes[p.id]) for p in PROBLEMS] == alone  # type: ignore[arg-type]


def test_solutions_depend_on_the_seed_and_the_id() -> None:
    with toy_solver() as one, toy_solver(seed=1) as other:
        again = Problem(id="other", question=PROBLEMS[0].question)
        trees = {str(s.solve(problem).tree.to_dict()) for s in (one, other) for problem in (PROBLEMS[0], again)}
    assert len(trees) == 4


def test_solver_reaches_its_concurrency_limit_and_stays_within() -> None:
    engine = CountingEngine()
    with toy_solver(engine=engine, concurrency=3) as one:
        assert len(list(one.solve_many(PROBLEMS))) == len(PROBLEMS)
    assert engine.most_problems == 3


def test_failed_problem_is_an_outcome_and_the_others_are_solved() -> None:
    broken = Problem(id="broken", question="bad")
    with toy_solver() as one:
        outcomes = {p.id: outcome for p, outcome in one.solve_many([PROBLEMS[0], broken, PROBLEMS[1]])}
    assert isinstance(outcomes["broken"], RuntimeError)
    assert isinstance(outcomes["p0"], Solution)
    assert isinstance(outcomes["p1"], Solution)


def test_failure_of_a_single_problem_is_raised() -> None:
    with toy_solver() as one, pytest.raises(RuntimeError, match="this one breaks"):
        one.solve("bad")


def test_async_iteration_equals_blocking_iteration() -> None:
    async def collect(one: Solver) -> dict[str, Any]:
        return {p.id: outcome async for p, outcome in one.asolve_many(PROBLEMS)}

    with toy_solver() as one:
        blocking = {p.id: plain(s) for p, s in one.solve_many(PROBLEMS)}  # type: ignore[arg-type]
        assert {i: plain(s) for i, s in asyncio.run(collect(one)).items()} == blocking


def test_closed_iterator_cancels_running_searches() -> None:
    engine = CountingEngine()
    with toy_solver(engine=engine, concurrency=5) as one:
        stream = one.solve_many(PROBLEMS)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    assert engine.now == 0
    assert len(engine.requests) < 4 * len(PROBLEMS)


def test_cancelled_await_cancels_the_search() -> None:
    class Stuck(EngineWithoutModel):
        cancelled = False

        async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            return []

    engine = Stuck()

    async def give_up(one: Solver) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.asolve("?"), 0.05)

    with toy_solver(engine=engine) as one:
        asyncio.run(give_up(one))
    assert engine.cancelled


def test_close_ends_the_thread_and_may_be_called_twice() -> None:
    others = set(threading.enumerate())
    one = toy_solver()
    one.solve("What is 3?")
    (ours,) = (thread for thread in threading.enumerate() if thread not in others and thread.name == "reason-loop")
    one.close()
    one.close()
    assert not ours.is_alive()


def test_budget_holds_per_problem() -> None:
    with toy_solver(budget=Budget(tokens=100)) as one:
        spent = [s.usage.tokens for _, s in one.solve_many(PROBLEMS) if isinstance(s, Solution)]
    assert len(spent) == len(PROBLEMS)
    assert all(tokens <= 100 for tokens in spent)
    assert sum(spent) > 100


def test_solution_without_a_scorer_has_no_score() -> None:
    with toy_solver(SelfConsistency(n=3), scorer=NoScorer()) as one:
        assert one.solve("What is 3?").score is None


def test_empty_question_is_refused() -> None:
    with toy_solver() as one, pytest.raises(ValueError, match="question must not be empty"):
        one.solve("  ")


def test_stream_yields_what_the_search_did_and_last_its_solution() -> None:
    with toy_solver(BeamSearch(n=4, beam_width=2)) as one:
        *events, solution = one.stream("What is 3?")
        assert isinstance(solution, Solution)
        assert plain(solution) == plain(one.solve("What is 3?"))
    steps = [step.text for event in events if isinstance(event, StepEvent) for step in event.steps]
    assert sorted(steps) == sorted(node.step.text for node in solution.tree.nodes)
    assert tuple(event for event in events if isinstance(event, Selection)) == solution.result.selections != ()


def test_closed_stream_ends_its_search() -> None:
    with toy_solver(BeamSearch(n=4, beam_width=2), engine=(engine := CountingEngine())) as one:
        events = one.stream("What is 3?")
        assert isinstance(events, Generator)
        next(events)
        events.close()
        one.solve("What is 4?")
        assert engine.now == 0


def test_async_stream_yields_the_same() -> None:
    async def collect(one: Solver) -> list[SearchEvent]:
        return [event async for event in one.astream("What is 3?")]

    with toy_solver() as one:
        *_, solution = asyncio.run(collect(one))
        assert isinstance(solution, Solution)
        assert plain(solution) == plain(one.solve("What is 3?"))
