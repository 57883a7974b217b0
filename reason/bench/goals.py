"""Goals of speculative decoding: required ratios, and whether the measured ones reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from reason.bench.speculation_run import AcceptancePoint, SpeculationRun, SpeedRun

TEMPERATURE = 1.0
OUR_SETUP = "stand_coupled"
REJECTION_SETUP = "stand_rejection"
SPEED_SETUP = "stand"
REQUIRED_SPEEDS = {1: 2.5, 16: 1.5, 64: 0.97}
REQUIRED_WORST_FAMILY = 0.98
# (baseline, required ratio, setups of which the best one is the baseline)
REQUIRED_GAINS = (
    ("recursive rejection with a tuned template", 1.10, (REJECTION_SETUP,)),
    (
        "deterministic drafting, the better of template and best-first",
        1.20,
        ("likely_template", "likely_best_first"),
    ),
    ("Token Recycling with its published rules", 2.0, ("token_recycling",)),
    ("prompt lookup with its published rules", 2.0, ("prompt_lookup",)),
)

ByFamily = dict[str, float]


@dataclass(frozen=True)
class Goal:
    """A required ratio and the measured one, None if the run did not measure it.

    `error` is the standard error that comes from sampling the trajectories.
    """

    description: str
    required: float
    measured: float | None = None
    error: float | None = None

    @property
    def verdict(self) -> str:
        """`PASS`, `short by ...` or `not measured`.

        >>> Goal("", 1.1, 1.045).verdict, Goal("", 1.1, 1.1).verdict
        ('short by 0.055', 'PASS')
        """
        if self.measured is None:
            return "not measured"
        return "PASS" if self.measured >= self.required else f"short by {self.required - self.measured:.3f}"

    def to_json(self) -> dict[str, object]:
        """Returns the numbers of the tables and of the JSON line."""
        return {**asdict(self), "verdict": self.verdict}


def evaluate_goals(
    points: Sequence[AcceptancePoint], speed_runs: Sequence[SpeedRun], nodes: Sequence[int]
) -> list[Goal]:
    """Returns the goals of the parts that were run, at temperature 1."""
    goals = [goal for budget in nodes for goal in _acceptance_goals(points, budget)] if points else []
    return [*goals, *(_speed_goals(speed_runs) if speed_runs else [])]


def _acceptance_goals(points: Sequence[AcceptancePoint], nodes: int) -> Iterator[Goal]:
    runs = {p.setup: p.run for p in points if p.temperature == TEMPERATURE and p.nodes == nodes}
    ours = runs.get(OUR_SETUP)
    for baseline, required, names in REQUIRED_GAINS:
        baselines = [runs[name] for name in names if name in runs]
        best = max(baselines, key=lambda run: run.tokens_per_forward, default=None)
        description = f"tokens per forward against {baseline}, {nodes} nodes"
        yield _compare_runs(description, required, ours, best, _ratio_of_means)
    description = f"the same against recursive rejection, worst family, {nodes} nodes"
    yield _compare_runs(description, REQUIRED_WORST_FAMILY, ours, runs.get(REJECTION_SETUP), _worst_ratio)


def _speed_goals(speed_runs: Sequence[SpeedRun]) -> Iterator[Goal]:
    runs = {r.live: r for r in speed_runs if r.temperature == TEMPERATURE and r.setup == SPEED_SETUP}
    for live, required in REQUIRED_SPEEDS.items():
        description = f"tokens per second against plain decoding, {live} live"
        yield Goal(description, required, runs[live].speed) if live in runs else Goal(description, required)


def _compare_runs(
    description: str,
    required: float,
    ours: SpeculationRun | None,
    baseline: SpeculationRun | None,
    ratio: Callable[[ByFamily, ByFamily], float],
) -> Goal:
    if ours is None or baseline is None:
        return Goal(description, required)
    measured = ratio(ours.by_family(), baseline.by_family())
    # Jackknife over trajectories, both runs without the same one: exact setups give equal texts for equal seeds.
    n = ours.workload.trajectories
    if n < 2:
        return Goal(description, required, measured)
    ratios = [ratio(ours.by_family(without=i), baseline.by_family(without=i)) for i in range(n)]
    mean = fmean(ratios)
    error = float(((n - 1) / n * sum((each - mean) ** 2 for each in ratios)) ** 0.5)
    return Goal(description, required, measured, error)


def _ratio_of_means(ours: ByFamily, baseline: ByFamily) -> float:
    return fmean(ours.values()) / fmean(baseline.values())


def _worst_ratio(ours: ByFamily, baseline: ByFamily) -> float:
    return min(tokens / baseline[family] for family, tokens in ours.items())
