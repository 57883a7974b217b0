"""Measures whole runs with speculation beside the same runs without it, and those beside themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from reason.config.compose import compose_settings
from reason.runs.run import TaskRun
from reason.settings.validate import validate_settings
from reason.solver import Solver
from reason.tasks.selection import select_task

WORKLOADS: Mapping[str, Sequence[str]] = {
    "default": (),
    "question": ("limit=1",),
    "64 live": ("limit=1", "search.n=64"),
    "512 live": ("limit=1", "search.n=512", "engine.max_running_requests=512"),
    "ets 16": ("search=ets", "search.n=16"),
    "thought": ("model=thinker", "search.n=1", "limit=4", "concurrency=1", "scorer=confidence"),
    "4 thoughts": ("model=thinker", "search.n=4", "limit=2", "concurrency=1", "scorer=confidence"),
}
"""Settings by the name of a workload; the others are defaults."""

PLAIN = "speculation=off"


@dataclass(frozen=True)
class RunSeconds:
    """Duration of a run without its start, and what it did. `cpu` counts all threads of the process.

    saved      seconds that drafts saved, as the controller estimates it; 0 where it does not
    solutions  the chosen solution of each problem, by its id
    """

    wall: float
    cpu: float
    rounds: int
    tokens: int
    drafted: int
    saved: float
    solutions: Mapping[str, str]


@dataclass(frozen=True)
class RunComparison:
    """Runs of one workload: with speculation, and twice without, in the order they were made."""

    workload: str
    drafted: list[RunSeconds] = field(default_factory=list)
    plain: list[RunSeconds] = field(default_factory=list)
    plain_again: list[RunSeconds] = field(default_factory=list)

    def ratios(self, clock: str) -> tuple[list[float], list[float]]:
        """Returns seconds with speculation over those without, and those without over each other; both ascending.

        `clock` is `wall` or `cpu`. A run with speculation is compared with the mean of the two beside it.
        """
        drafted, plain, again = (
            [getattr(run, clock) for run in runs] for runs in (self.drafted, self.plain, self.plain_again)
        )
        ratios = sorted(2 * on / (off + other) for on, off, other in zip(drafted, plain, again, strict=True))
        return ratios, sorted(other / off for off, other in zip(plain, again, strict=True))

    def estimated_ratios(self) -> list[float]:
        """Returns wall seconds with speculation over those without, as controllers estimate the latter; ascending."""
        return sorted(run.wall / (run.wall + run.saved) for run in self.drafted)

    def count_differing(self) -> int:
        """Returns how many problems of the runs with speculation have another solution than in the run before it."""
        return sum(
            run.solutions[problem] != plain.solutions.get(problem)
            for run, plain in zip(self.drafted, self.plain, strict=True)
            for problem in run.solutions
        )

    def to_json(self) -> dict[str, object]:
        """Returns the median and the extremes of all ratios, and what the runs with speculation did."""
        clocks: dict[str, object] = {}
        for clock in ("wall", "cpu"):
            for name, ratios in zip((clock, f"{clock}_plain"), self.ratios(clock), strict=True):
                clocks[name] = _summarize(ratios)
        clocks["estimated"] = _summarize(self.estimated_ratios())
        last = self.drafted[-1]
        counts = {
            "rounds": last.rounds,
            "plain_rounds": self.plain[-1].rounds,
            "tokens": last.tokens,
            "drafted": last.drafted,
            "num_differing": self.count_differing(),
            "problems": sum(len(run.solutions) for run in self.drafted),
        }
        return {"workload": self.workload, "pairs": len(self.drafted), **clocks, **counts}


def compare_runs(
    workloads: Sequence[str], pairs: int, speculation: str, settings: Sequence[str] = ()
) -> Iterator[RunComparison]:
    """Yields a comparison after every pair. Each run has a solver of its own, whose start is not timed.

    A pair is a run without speculation, one with it, and one without it. `settings` are those of all runs.
    """
    comparisons: dict[str, RunComparison] = {name: RunComparison(name) for name in workloads}
    for setting in (PLAIN, f"speculation={speculation}"):  # compiles what a fresh machine has not compiled
        run_once([*WORKLOADS[workloads[0]], *settings, setting, "limit=1"])
    for _ in range(pairs):
        for name, comparison in comparisons.items():
            common = [*WORKLOADS[name], *settings]
            comparison.plain.append(run_once([*common, PLAIN]))
            comparison.drafted.append(run_once([*common, f"speculation={speculation}"]))
            comparison.plain_again.append(run_once([*common, PLAIN]))
            yield comparison


@contextmanager
def open_run(overrides: Sequence[str]) -> Iterator[tuple[TaskRun, Solver]]:
    """Opens a run with these settings, and its solver; keeps nothing of it."""
    config, choices = compose_settings(list(overrides))
    spec = validate_settings(config, choices)
    task, stands_in_for = select_task(spec.config, choices, spec.scorer)
    with TemporaryDirectory() as folder, closing(task), spec.load_solver(task) as solver:
        metadata = spec.run_metadata(task, stands_in_for)
        yield TaskRun(solver, task, Path(folder), run_metadata=metadata, limit=config["limit"]), solver


def run_once(overrides: Sequence[str]) -> RunSeconds:
    """Solves the problems of a run with these settings."""
    with open_run(overrides) as (run, solver):
        wall, cpu = time.perf_counter(), time.process_time()
        solutions = {result.id: result.thought + result.text for result in run.solve_missing()}
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        stats = solver.engine.stats
        saved = stats.seconds_saved or 0.0
        return RunSeconds(wall, cpu, stats.rounds, stats.tokens, stats.drafted, saved, solutions)


def _summarize(ratios: Sequence[float]) -> dict[str, float]:
    return {"median": median(ratios), "low": ratios[0], "high": ratios[-1]}
