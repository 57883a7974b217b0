"""What speculation has to reach, and whether the measured figures do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from reason.bench.points import Point, Race
from reason.bench.speculation_run import Run

TEMPERATURE = 1.0
OURS = "stand_coupled"
REJECTION = "stand_rejection"
SPEED_OF = "stand"
SPEEDS = {1: 2.5, 16: 1.5, 64: 0.97}
WORST_FAMILY = 0.98
# who is beaten, by how much, and the contenders of which the best counts
GAINS = (
    ("recursive rejection with a tuned template", 1.10, (REJECTION,)),
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
class Bar:
    """A ratio that is wanted, and the one that was measured; None if the run did not cover it.

    `error` is its standard error, as far as it comes from which trajectories were sampled.
    """

    what: str
    wanted: float
    got: float | None = None
    error: float | None = None

    @property
    def verdict(self) -> str:
        """
        >>> Bar("", 1.1, 1.045).verdict, Bar("", 1.1, 1.1).verdict
        ('short by 0.055', 'PASS')
        """
        if self.got is None:
            return "not measured"
        return "PASS" if self.got >= self.wanted else f"short by {self.wanted - self.got:.3f}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def bars(points: Sequence[Point], races: Sequence[Race], nodes: Sequence[int]) -> list[Bar]:
    """Those of the parts that were run, at temperature 1."""
    found = [bar for budget in nodes for bar in _at_equal_nodes(points, budget)] if points else []
    return [*found, *(_at_speed(races) if races else [])]


def _at_equal_nodes(points: Sequence[Point], nodes: int) -> Iterator[Bar]:
    here = {p.contender: p.run for p in points if p.temperature == TEMPERATURE and p.nodes == nodes}
    for what, wanted, names in GAINS:
        present = [here[name] for name in names if name in here]
        best = max(present, key=lambda run: run.tokens_per_forward, default=None)
        yield _bar(f"tokens per forward against {what}, {nodes} nodes", wanted, here.get(OURS), best, _of_means)
    what = f"the same against recursive rejection, worst family, {nodes} nodes"
    yield _bar(what, WORST_FAMILY, here.get(OURS), here.get(REJECTION), _worst)


def _at_speed(races: Sequence[Race]) -> Iterator[Bar]:
    here = {r.live: r for r in races if r.temperature == TEMPERATURE and r.contender == SPEED_OF}
    for live, wanted in SPEEDS.items():
        what = f"tokens per second against plain decoding, {live} live"
        yield Bar(what, wanted, here[live].speed) if live in here else Bar(what, wanted)


def _bar(
    what: str, wanted: float, ours: Run | None, theirs: Run | None, ratio: Callable[[ByFamily, ByFamily], float]
) -> Bar:
    if ours is None or theirs is None:
        return Bar(what, wanted)
    got = ratio(ours.by_family(), theirs.by_family())
    # The jackknife over trajectories. Branches of one seed say the same under both, where both are exact.
    n = ours.work.trajectories
    if n < 2:
        return Bar(what, wanted, got)
    without = [ratio(ours.by_family(without=i), theirs.by_family(without=i)) for i in range(n)]
    middle = fmean(without)
    return Bar(what, wanted, got, float(((n - 1) / n * sum((one - middle) ** 2 for one in without)) ** 0.5))


def _of_means(ours: ByFamily, theirs: ByFamily) -> float:
    return fmean(ours.values()) / fmean(theirs.values())


def _worst(ours: ByFamily, theirs: ByFamily) -> float:
    return min(mine / theirs[family] for family, mine in ours.items())
