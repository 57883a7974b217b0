"""Runs the settings of a system beside plain decoding, or a search beside samples, and counts."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from reason.bench.replay import EncodedProblem, replay_problems
from reason.bench.systems.rows import SystemRow, chooses_drafts
from reason.bench.whole_runs import PLAIN, open_run
from reason.config.compose import compose_settings
from reason.engines.speculation import validate_speculation
from reason.grading import RIGHT
from reason.runs.result import ProblemResult

EQUAL_NODES = 16
"""Draft tokens a round of a branch where systems are compared at equal nodes."""

_SAMPLES = ("search=self_consistency", "search.n=8", "concurrency=1", "scorer=none")
WORKLOADS: Mapping[str, Sequence[str]] = {
    "writer": ("+task=synthetic", *_SAMPLES),
    "thinker": ("model=thinker", "+task=puzzles", *_SAMPLES),
}
"""Settings by the name of a workload: short solutions, and long thoughts."""
SEARCH_WORKLOADS: Mapping[str, tuple[Sequence[str], str, str]] = {
    "writer": (("+task=synthetic", "task.difficulty=[3,4]", "search.n=16"), "search=best_of_n", "best-of-16"),
    "thinker": (("model=thinker", "+task=puzzles", "search.n=16"), "search=self_consistency", "a vote of 16"),
}
"""Settings of a workload of searches, those of its baseline, and the name of that. No reward model reads thoughts."""


@dataclass(frozen=True)
class RunCounts:
    """What one run did. `solutions` has the answer, tokens and end of every sample, and the chosen text."""

    tokens: int
    forwards: int
    drafted: int
    seconds: float
    right: int
    problems: int
    solutions: tuple[object, ...]

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / max(1, self.forwards)

    @property
    def nodes_per_forward(self) -> float:
        return self.drafted / max(1, self.forwards)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def accuracy(self) -> float:
        return self.right / self.problems


@dataclass(frozen=True)
class DecodingFigure:
    """A setting on one workload.

    tokens_per_forward  of a branch, with `EQUAL_NODES` draft tokens in each round, or as many as its controller takes
    speed               tokens per second over those of plain runs beside it: median, lowest and highest
    differing           samples that are not those of plain decoding, of `samples`
    accuracy            share of problems that are right, and that of plain decoding
    nodes               draft tokens of a branch in a forward pass of the same run, a mean; None for a system that has
                        nothing to do with drafts, and in figures of an earlier version
    equal_speed         as `speed`, of runs with `EQUAL_NODES` draft tokens in each round, beside the same plain runs;
                        None for such systems too, and for those with a controller of their own
    """

    tokens_per_forward: float
    speed: tuple[float, float, float]
    differing: int
    samples: int
    accuracy: float
    plain_accuracy: float
    nodes: float | None = None
    equal_speed: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class SearchFigure:
    """A search and the baseline beside it: share of right answers and tokens a problem."""

    accuracy: float
    tokens: float
    baseline_accuracy: float
    baseline_tokens: float
    problems: int
    baseline: str


def list_parts(row: SystemRow, workloads: Sequence[str], *, has_recordings: bool) -> list[str]:
    """Returns the keys of the figures that a system has with these workloads, and recorded texts where there are."""
    if row.bench == "search":
        return ["search"]
    chosen = [name for name in workloads if not row.workloads or name in row.workloads]
    return [*chosen, "recordings"] if has_recordings and row.bench == "decoding" else chosen


def measure_row(row: SystemRow, *, problems: int, pairs: int, workloads: Sequence[str]) -> dict[str, Any]:
    """Returns the figures of a system as plain data, by workload. Raises: ConfigError for settings that do not run."""
    settings = shlex.split(row.settings)
    common = shlex.split(row.common)
    if row.bench == "search":
        name = (*row.workloads, "writer")[0]
        return {"search": asdict(compare_search(settings, common, problems=problems, workload=name))}
    return {
        name: asdict(compare_decoding(settings, [*WORKLOADS[name], *common], problems=problems, pairs=pairs))
        for name in list_parts(row, workloads, has_recordings=False)
    }


def replay_row(row: SystemRow, recordings: Sequence[EncodedProblem]) -> float | None:
    """Returns tokens per forward pass over recorded texts, with `EQUAL_NODES` nodes; None for a draft model."""
    config, _ = compose_settings(shlex.split(row.settings))
    spec = validate_speculation(config)
    if spec.loads_a_model:
        return None
    drafter = spec.make_speculation(None, "").drafter
    return replay_problems(row.name, drafter, recordings, EQUAL_NODES)["tokens_per_forward"]


def compare_decoding(settings: Sequence[str], workload: Sequence[str], *, problems: int, pairs: int) -> DecodingFigure:
    """Runs plain decoding, a setting, and that setting with `EQUAL_NODES` draft tokens a round, in turns."""
    common = [*workload, f"task.size={problems}", f"limit={problems}"]
    has_controller = any(setting.startswith("controller") for setting in settings)
    drafts = chooses_drafts(settings)
    equal = ["controller=fixed", f"controller.nodes={EQUAL_NODES}"] if drafts and not has_controller else []
    speeds, equal_speeds = list[float](), list[float]()
    for _ in range(pairs):
        plain = run_settings([*common, PLAIN])
        counted = run_settings([*common, *settings])
        speeds.append(counted.tokens_per_second / plain.tokens_per_second)
        if equal:
            counted = run_settings([*common, *settings, *equal])
            equal_speeds.append(counted.tokens_per_second / plain.tokens_per_second)
    differing = sum(a != b for a, b in zip(counted.solutions, plain.solutions, strict=True))
    return DecodingFigure(
        counted.tokens_per_forward, _spread(speeds), differing, len(plain.solutions), counted.accuracy,
        plain.accuracy, counted.nodes_per_forward if drafts else None, _spread(equal_speeds) if equal else None,
    )  # fmt: skip


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median, the lowest and the highest."""
    return median(values), min(values), max(values)


def compare_search(settings: Sequence[str], common: Sequence[str], *, problems: int, workload: str) -> SearchFigure:
    """Runs a search and the baseline of `SEARCH_WORKLOADS[workload]` on the same problems."""
    chosen, plain, name = SEARCH_WORKLOADS[workload]
    shared = [*chosen, *common, f"task.size={problems}", f"limit={problems}"]
    # a setting may be named once, and a system may name the model of its workload
    ours, baseline = run_settings(list(dict.fromkeys([*shared, *settings]))), run_settings([*shared, plain])
    return SearchFigure(
        ours.accuracy, ours.tokens / problems, baseline.accuracy, baseline.tokens / problems, ours.problems, name
    )


def run_settings(overrides: Sequence[str]) -> RunCounts:
    """Solves the problems of a run; keeps its counts alone. The start of the solver is not timed."""
    with open_run(overrides) as (run, _):
        begin = time.perf_counter()
        results = list(run.solve_missing())
        return _count(results, time.perf_counter() - begin)


def _count(results: Sequence[ProblemResult], seconds: float) -> RunCounts:
    failed = [result.error for result in results if result.error is not None]
    if failed:
        raise RuntimeError(f"{len(failed)} problems failed, the first with: {failed[0]}")
    ordered = sorted(results, key=lambda result: result.id)
    solutions = [(sample.answer, sample.tokens, sample.finish) for result in ordered for sample in result.samples]
    return RunCounts(
        sum(result.usage.tokens for result in ordered),
        sum(result.usage.forwards for result in ordered),
        sum(result.usage.drafted for result in ordered),
        seconds,
        sum(result.grade == RIGHT for result in ordered),
        len(ordered),
        tuple(solutions),
    )
