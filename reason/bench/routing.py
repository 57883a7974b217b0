"""Step-level routers compared: accuracy against what the large model had to write, over each router's threshold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reason.bench.runs import Arm, Outcome
from reason.runs.metrics import Difference, avg
from reason.runs.result import samples_of, spent_of
from reason.runs.result_file import file_name

Floats = npt.NDArray[np.float64]

KNOBS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "draft_only": ("", ()),
    "target_only": ("", ()),
    "random": ("rate", (0.25, 0.5, 0.75)),
    "cue": ("threshold", (1,)),
    "entropy": ("threshold", (0.05, 0.15, 0.3, 0.6)),
    "reward_threshold": ("threshold", (1e-6, 1e-3, 0.01, 0.05, 0.2, 0.7, 0.95)),
    "arbitrage": ("threshold", (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)),
    "oracle": ("threshold", (0.0, 0.25, 0.5, 0.8)),
}
"""Every router's knob and the values it is swept over."""

READS_SCORES = ("reward_threshold", "oracle")


@dataclass(frozen=True)
class Setting:
    """One router at one value of its knob, or without one."""

    router: str
    value: float | None = None

    def arm(self, samples: int, common: Sequence[str]) -> Arm:
        """The run: each problem sampled `samples` times; nothing but these routers needs a reward model."""
        own = [f"router={self.router}"]
        if self.value is not None:
            own.append(f"router.{KNOBS[self.router][0]}={self.value:g}")  # a whole number stays one
        if self.router not in READS_SCORES:
            own.append("scorer=none")
        return Arm("self_consistency", samples, (*common, *own))

    @property
    def name(self) -> str:
        return self.router if self.value is None else f"{self.router}-{self.value:g}"


@dataclass(frozen=True)
class Routed:
    """What a setting gave, per problem `[P]`; all but `accuracy`, a share, in tokens, passes or steps per sample.

    target    tokens of the steps the large model wrote; of the oracle, which has both write everything, those kept
    wasted    tokens written by either and thrown away
    forwards  forward passes of the large model
    seconds   of the run, divided among its problems
    """

    setting: Setting
    accuracy: Floats
    target: Floats
    draft: Floats
    wasted: Floats
    forwards: Floats
    steps: Floats
    rewritten: Floats
    seconds: float

    def cost(self, ratio: float) -> Floats:
        """In tokens of the large model, if one of the small model's costs `1 / ratio` of one of its."""
        return self.target + self.draft / ratio


def routed(setting: Setting, outcome: Outcome, folder: Path) -> Routed:
    """The numbers of a finished run in `folder`."""
    rows, samples = outcome.rows, outcome.arm.width
    kept = [_written(folder / "trees" / f"{file_name(row['id'])}.json") for row in rows]
    spent = [spent_of(row) for row in rows]

    def per_sample(values: Sequence[float]) -> Floats:
        return np.array(values, dtype=np.float64) / samples

    both = setting.router == "oracle"
    return Routed(
        setting=setting,
        accuracy=np.array([avg(samples_of(row)) for row in rows]),
        target=per_sample([k.target_tokens if both else s.target_tokens for k, s in zip(kept, spent, strict=True)]),
        draft=per_sample([s.draft_tokens for s in spent]),
        wasted=per_sample([s.discarded_tokens for s in spent]),
        forwards=per_sample([s.forwards for s in spent]),
        steps=per_sample([k.steps for k in kept]),
        rewritten=per_sample([k.target_steps for k in kept]),
        seconds=outcome.per_problem("seconds"),
    )


@dataclass(frozen=True)
class _Written:
    steps: int
    target_steps: int
    target_tokens: int


def _written(tree: Path) -> _Written:
    """Who wrote the steps of a tree. A step that several samples share counts once: sampled ones hardly ever do."""
    nodes = json.loads(tree.read_text(encoding="utf-8"))["nodes"]
    target = [node for node in nodes if node["author"] == "target"]
    return _Written(len(nodes), len(target), sum(len(node["tokens"]) for node in target))


def least_seconds(setting: Routed, draft_only: Routed, target_only: Routed) -> float:
    """The share of target_only's seconds that a setting's tokens take at each model's own seconds a token, measured
    alone: the limit for this pair on this machine, at which reading and waiting for each other cost nothing."""
    draft = draft_only.seconds / draft_only.draft.mean() * setting.draft.mean()
    target = target_only.seconds / target_only.target.mean() * setting.target.mean()
    return float((draft + target) / target_only.seconds)


def area(points: Sequence[Routed], ends: Sequence[Routed], problems: npt.NDArray[np.intp], *, grid: int = 101) -> float:
    """Mean accuracy over the range of the large model's tokens from none to all: the area under a router's curve.

    A router's points and the two ends (one model writes all) are joined by straight lines, which a router drawn by
    lot between two points would walk. `problems` are the ones that count, as often as they are named.
    """
    drawn = sorted((float(p.target[problems].mean()), float(p.accuracy[problems].mean())) for p in (*points, *ends))
    tokens, accuracy = zip(*drawn, strict=True)
    most = max(float(end.target[problems].mean()) for end in ends)
    return float(np.interp(np.linspace(0, most, grid), tokens, accuracy).mean())


def compare_areas(
    a: Sequence[Routed], b: Sequence[Routed], ends: Sequence[Routed], *, draws: int = 2000, seed: int = 0
) -> Difference:
    """How much larger the area of `a` is, by a paired bootstrap over problems."""
    count = len(ends[0].accuracy)
    rng = np.random.default_rng(seed)

    def apart(problems: npt.NDArray[np.intp]) -> float:
        return area(a, ends, problems) - area(b, ends, problems)

    drawn = [apart(rng.integers(count, size=count)) for _ in range(draws)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Difference(apart(np.arange(count)), float(low), float(high), count)


def cheapest_within(points: Sequence[Routed], goal: float) -> Routed | None:
    """The point of fewest large-model tokens that is at least this accurate; None if none is."""
    reached = [point for point in points if point.accuracy.mean() >= goal]
    return min(reached, key=lambda point: float(point.target.mean()), default=None)
