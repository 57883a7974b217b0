"""Measures whole searches on a puppet: real scores and decisions, rounds at the price of the body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from time import perf_counter

from decoding.core import Usage
from decoding.engine import LocalEngine
from decoding.model.backend import Backend
from decoding.speculation.controllers.cost_curve import CalibratedCost
from decoding.stats import EngineStats
from reason.bench.drafter_setups import MachineCosts, measure_costs
from reason.bench.speculation_run import divide_seconds
from reason.bench.workload import BundledTarget
from reason.config.compose import compose_settings
from reason.problem import Solution
from reason.settings.solve_spec import SolveSpec
from reason.settings.validate import validate_settings
from reason.solver import Solver
from reason.tasks.base import Task
from reason.tasks.selection import select_task

PLAIN = "off"


@dataclass(frozen=True)
class SearchSettings:
    """Searches, drafters (options of `speculation`), and the sizes of the measurement."""

    searches: tuple[str, ...]
    drafters: tuple[str, ...]
    width: int
    problems: int
    laps: int
    kv_mib: int
    max_tokens: int | None = None


@dataclass(frozen=True)
class SearchRun:
    """One search over all problems on a fresh engine; solutions are in the order of the problems."""

    seconds: float
    solutions: tuple[Solution, ...]
    num_correct: int
    stats: EngineStats

    @property
    def usage(self) -> Usage:
        return sum((solution.usage for solution in self.solutions), Usage())

    def count_differing(self, other: SearchRun) -> int:
        """Number of problems whose votes or chosen texts are not those of another run."""
        pairs = zip(self.solutions, other.solutions, strict=True)
        return sum((mine.votes, mine.full_text) != (theirs.votes, theirs.full_text) for mine, theirs in pairs)


@dataclass
class SearchPoint:
    """All runs of one search and drafter, each after a plain run."""

    search: str
    drafter: str
    runs: list[SearchRun] = field(default_factory=list)
    plain: list[SearchRun] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Returns the numbers of the table and of the JSON line, under the names of a `SpeedRun`."""
        pairs = list(zip(self.runs, self.plain, strict=True))
        speeds = [plain.seconds / run.seconds for run, plain in pairs]
        last = self.runs[-1]
        return {
            "search": self.search,
            "setup": self.drafter,
            "speed": median(speeds),
            "speeds": speeds,
            "tokens_per_s": median(run.usage.tokens / run.seconds for run in self.runs),
            "tokens_per_forward": last.usage.tokens / last.usage.forwards,
            "rounds": median(run.stats.rounds for run in self.runs),
            "time_shares": divide_seconds(last.stats, last.seconds),
            "num_differing": sum(run.count_differing(plain) for run, plain in pairs),
            "trajectories": sum(len(run.solutions) for run in self.runs),
            "correct": last.num_correct,
            "problems": len(last.solutions),
        }


def measure_searches(
    target: BundledTarget,
    backend: Backend,
    settings: SearchSettings,
    log_line: Callable[[str], None] = lambda line: None,
) -> list[SearchPoint]:
    """Runs every search with every drafter on `backend`, each run after a plain one; the task is the target's.

    The scorer is the one that the bundled settings choose. Raises: ConfigError for an unknown search or drafter.
    """
    costs = measure_costs(backend)
    points = []
    for search in settings.searches:
        with (
            _open_bench(target, settings, search, PLAIN, costs) as plain,
            ExitStack() as stack,
        ):
            benches = [
                stack.enter_context(_open_bench(target, settings, search, drafter, costs))
                for drafter in settings.drafters
            ]
            for bench in (plain, *benches):  # the first run compiles; that takes no expensive rounds
                bench.run(target.backend)
            of_search = [SearchPoint(search, drafter) for drafter in settings.drafters]
            for _ in range(settings.laps):
                for point, bench in zip(of_search, benches, strict=True):
                    point.plain.append(plain.run(backend))
                    point.runs.append(bench.run(backend))
                    log_line(f"{search:<14} {point.drafter:<10} {point.runs[-1].seconds:6.1f} s")
            points += of_search
    return points


@dataclass(frozen=True)
class _SearchBench:
    """A solver of the bundled settings whose engine is replaced before every run."""

    target: BundledTarget
    spec: SolveSpec
    task: Task
    solver: Solver
    settings: SearchSettings
    costs: MachineCosts

    def run(self, backend: Backend) -> SearchRun:
        """Solves the problems with a new engine over `backend`."""
        problems = list(islice(self.task, self.settings.problems))
        engine = self._make_engine(backend)
        self.solver.engine = engine
        try:
            begin = perf_counter()
            outcomes = {problem.id: outcome for problem, outcome in self.solver.solve_many(problems)}
            seconds = perf_counter() - begin
            stats = engine.stats
        finally:
            engine.close()
        solutions = []
        for problem in problems:
            outcome = outcomes[problem.id]
            if isinstance(outcome, Exception):
                raise outcome
            solutions.append(outcome)
        num_correct = sum(
            self.task.grade(problem, solution.answer).is_correct is True
            for problem, solution in zip(problems, solutions, strict=True)
        )
        return SearchRun(seconds, tuple(solutions), num_correct, stats)

    def _make_engine(self, backend: Backend) -> LocalEngine:
        tokenizer = self.target.tokenizer
        speculation = self.spec.speculation.make_speculation(tokenizer, self.spec.checkpoint.source)
        if isinstance(speculation.controller, CalibratedCost):
            speculation.controller.calibrate_cost(*self.costs)
        return LocalEngine(
            backend,
            decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False)),
            eos_ids=self.target.eos_ids,
            kv_bytes=self.settings.kv_mib << 20,
            speculation=speculation,
            prepares_rounds=True,
        )


@contextmanager
def _open_bench(
    target: BundledTarget,
    settings: SearchSettings,
    search: str,
    drafter: str,
    costs: MachineCosts,
) -> Iterator[_SearchBench]:
    """Opens the solver that `search` and `drafter` name, with its scorer."""
    overrides = [f"search={search}", f"search.n={settings.width}", f"speculation={drafter}", f"+task={target.task}"]
    if settings.max_tokens is not None:
        overrides.append(f"search.sampling.max_tokens={settings.max_tokens}")
    config, choices = compose_settings(overrides)
    spec = validate_settings(config, choices)
    task, _ = select_task(spec.config, choices, spec.scorer)
    # the bundled engine that the solver opens is not used: it gets plain decoding, which measures nothing at start
    plain_config, plain_choices = compose_settings([*overrides, "speculation=off", "engine.kv_mib=8"])
    with closing(task), validate_settings(plain_config, plain_choices).load_solver(task) as solver:
        solver.engine.close()
        yield _SearchBench(target, spec, task, solver, settings, costs)
