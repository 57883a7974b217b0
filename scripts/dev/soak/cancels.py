"""Cancel searches of the local engine at random moments; others have deadlines and budgets, and must end with a result.

Afterwards the engine holds nothing, and a search gives the tree it gave before the storm. Started by soak.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from limits import close_in_time, count_other_tasks, find_unfinished
from part_program import PartSettings, RoundReport, run_part
from rows import find_differences

import reason
from reason import Problem, Solution, Solver
from reason.config.compose import compose_settings
from reason.runs.run import tree_record
from reason.settings.solve_spec import SolveSpec
from reason.settings.validate import validate_settings

ENGINES = (
    ("engine.kv_mib=64",),
    ("engine.kv_mib=2",),
    ("engine.kv_mib=64", "speculation=off"),
    ("engine.kv_mib=64", "speculation=draft_model"),
    ("engine.kv_mib=16", "engine.dtype=float64", "speculation=prompt_lookup"),
)
SEARCHES = (
    ("search.n=4",),
    ("search=self_consistency", "search.n=6"),
    ("search=beam_search", "search.n=4"),
    ("search=rebase", "search.n=6"),
    ("search=mcts", "search.n=3"),
    ("search=ets", "search.n=6"),
)
BUDGETS = (
    (),
    ("budget.seconds=0.3",),
    ("budget.seconds=2",),
    ("budget.tokens=40",),
    ("budget.tokens=200",),
    ("budget.calls=5",),
    ("budget.forwards=20",),
)
QUESTIONS = [f"x0 = {x}. Each next term is 5 times the one before plus 8, modulo 19. Find x3." for x in range(8)]
NUM_SEARCHES = 40
STORM_S = 4.0


class CancelAttack:
    """Each round opens a solver, compares a tree before and after the storm, and closes it."""

    def __init__(self, settings: PartSettings) -> None:
        self._limit_s = settings.limit_s
        self._num_searches, self._storm_s = settings.scale_count(NUM_SEARCHES), settings.scale * STORM_S
        small = "search.sampling.max_tokens=80"
        self._strategies = [validate(*search, small).strategy for search in SEARCHES]
        self._budgets = [validate(*budget).budget for budget in BUDGETS]

    def run_round(self, seed: int, rng: random.Random) -> RoundReport:
        """Draws an engine, searches, budgets and the moments of the cancellations."""
        report = RoundReport()
        engine = rng.choice(ENGINES)
        solver = reason.load(*engine, "search=ets", "search.n=4", "search.sampling.max_tokens=80")  # with an embedder
        try:
            before = tree_record(solver.solve(QUESTIONS[0]))
            self._storm(solver, seed, rng, report)
            if report.hung:
                return report
            solver.assert_invariants()
            self._check_tasks(solver, report)
            after = tree_record(solver.solve(QUESTIONS[0]))
            if difference := next(find_differences(before, after), None):
                report.lost.append(f"another tree after the storm: {difference}")
            solver.assert_invariants()
        except AssertionError as error:
            report.leaked.append(f"the idle engine: {error or 'an invariant does not hold'}")
        finally:
            close_in_time(solver, report)
        report.lost = [f"{fault} ({' '.join(engine)})" for fault in report.lost]
        return report

    def _storm(self, solver: Solver, seed: int, rng: random.Random, report: RoundReport) -> None:
        """Starts searches, cancels about two thirds of them, and waits for the end of all."""
        began = time.monotonic()
        starts = sorted(rng.uniform(0.0, self._storm_s) for _ in range(self._num_searches))
        searches: list[Future[Solution]] = []
        cancels: dict[Future[Solution], float] = {}
        while len(searches) < self._num_searches or any(not search.done() for search in cancels):
            now = time.monotonic() - began
            while len(searches) < self._num_searches and starts[len(searches)] <= now:
                search = self._start(solver, Problem(id=f"{seed}-{len(searches)}", question=rng.choice(QUESTIONS)), rng)
                searches.append(search)
                if rng.random() < 0.7:
                    cancels[search] = now + rng.expovariate(1.0)
            for search, due in cancels.items():
                if due <= now and not search.done() and search.cancel():
                    report.counts["cancelled"] += 1
            time.sleep(0.005)
        if fault := find_unfinished(searches, self._limit_s):
            report.hung.append(fault)
        report.counts["searches"] += len(searches)
        for search in searches:
            if search.done() and not search.cancelled() and (error := search.exception()):
                report.lost.append(f"{type(error).__name__}: {error}"[:300])

    def _start(self, solver: Solver, problem: Problem, rng: random.Random) -> Future[Solution]:
        strategy, budget = rng.choice(self._strategies), rng.choice(self._budgets)
        return solver.with_options(strategy=strategy, budget=budget, seed=rng.randrange(1 << 30)).submit(problem)

    def _check_tasks(self, solver: Solver, report: RoundReport) -> None:
        """Cancelled searches must leave no task on the solver's event loop."""
        end = time.monotonic() + self._limit_s
        while (left := solver.run_coroutine(count_other_tasks())) and time.monotonic() < end:
            time.sleep(0.05)
        if left:
            report.leaked.append(f"{left} tasks are left on the event loop")


def validate(*overrides: str) -> SolveSpec:
    """Returns the validated settings: a strategy and a budget among them."""
    return validate_settings(*compose_settings(overrides))


@contextmanager
def open_attack(settings: PartSettings) -> Iterator[CancelAttack]:
    """Yields the attack."""
    yield CancelAttack(settings)


if __name__ == "__main__":
    run_part(open_attack)
