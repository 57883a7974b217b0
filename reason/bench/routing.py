"""Compares step-level routers: accuracy against tokens of the large model, over the threshold of each router."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reason.bench.runs import RunOutcome, RunSpec
from reason.runs.json_files import safe_file_name
from reason.runs.metrics import PairedDifference, avg_at_n

Floats = npt.NDArray[np.float64]

SWEPT_VALUES: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "draft_only": ("", ()),
    "target_only": ("", ()),
    "random": ("rate", (0.25, 0.5, 0.75)),
    "cue": ("threshold", (1,)),
    "entropy": ("threshold", (0.05, 0.15, 0.3, 0.6)),
    "reward_threshold": ("threshold", (1e-6, 1e-3, 0.01, 0.05, 0.2, 0.7, 0.95)),
    "arbitrage": ("threshold", (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)),
    "oracle": ("threshold", (0.0, 0.25, 0.5, 0.8)),
}
"""Each router's setting and the values that are compared."""

READ_SCORES = ("reward_threshold", "oracle")


@dataclass(frozen=True)
class RouterSetting:
    """One router at one value of its setting; None for routers without a setting."""

    router: str
    value: float | None = None

    def run_spec(self, samples: int, common: Sequence[str]) -> RunSpec:
        """Returns the run that samples each problem `samples` times; only `READ_SCORES` get a reward model."""
        settings = [f"router={self.router}"]
        if self.value is not None:
            settings.append(f"router.{SWEPT_VALUES[self.router][0]}={self.value:g}")  # %g keeps an int an int
        if self.router not in READ_SCORES:
            settings.append("scorer=none")
        return RunSpec("self_consistency", samples, (*common, *settings))

    @property
    def name(self) -> str:
        return self.router if self.value is None else f"{self.router}-{self.value:g}"


@dataclass(frozen=True)
class RouterPoint:
    """The result of a setting, per problem `[P]`; all but `accuracy`, a share, in tokens, passes or steps per sample.

    target_tokens     tokens of the steps that the large model wrote; of the oracle, whose models both write every
                      step, only those in the tree
    discarded_tokens  tokens of either model that are not in the tree
    target_forwards   forward passes of the large model
    seconds           of the run, divided among its problems
    """

    setting: RouterSetting
    accuracy: Floats
    target_tokens: Floats
    small_tokens: Floats
    discarded_tokens: Floats
    target_forwards: Floats
    steps: Floats
    rewritten_steps: Floats
    seconds: float

    def cost(self, ratio: float) -> Floats:
        """Returns the cost in tokens of the large model, if a token of the small model costs `1 / ratio` of one."""
        return self.target_tokens + self.small_tokens / ratio


def load_point(setting: RouterSetting, outcome: RunOutcome, folder: Path) -> RouterPoint:
    """Returns the numbers of a finished run in `folder`."""
    rows, samples = outcome.rows, outcome.spec.width
    in_tree = [_count_steps(folder / "trees" / f"{safe_file_name(row.id)}.json") for row in rows]
    usages = [row.usage for row in rows]

    def per_sample(values: Sequence[float]) -> Floats:
        return np.array(values, dtype=np.float64) / samples

    both = setting.router == "oracle"
    return RouterPoint(
        setting=setting,
        accuracy=np.array([avg_at_n(row.graded_samples) for row in rows]),
        target_tokens=per_sample(
            [k.target_tokens if both else s.target_tokens for k, s in zip(in_tree, usages, strict=True)]
        ),
        small_tokens=per_sample([s.small_tokens for s in usages]),
        discarded_tokens=per_sample([s.discarded_tokens for s in usages]),
        target_forwards=per_sample([s.forwards for s in usages]),
        steps=per_sample([k.steps for k in in_tree]),
        rewritten_steps=per_sample([k.target_steps for k in in_tree]),
        seconds=outcome.per_problem("seconds"),
    )


@dataclass(frozen=True)
class _StepCounts:
    steps: int
    target_steps: int
    target_tokens: int


def _count_steps(tree: Path) -> _StepCounts:
    """Counts the steps of a tree by the model that wrote them. Steps that several samples share count once."""
    nodes = json.loads(tree.read_text(encoding="utf-8"))["nodes"]
    target = [node for node in nodes if node["model"] == "target"]
    return _StepCounts(len(nodes), len(target), sum(len(node["tokens"]) for node in target))


def minimum_seconds(setting: RouterPoint, draft_only: RouterPoint, target_only: RouterPoint) -> float:
    """Returns the minimum time of a setting, as a share of target_only's: its tokens at each model's seconds per token.

    The seconds per token are measured with each model alone, so prefill and waiting of one model for the other cost
    nothing.
    """
    draft = draft_only.seconds / draft_only.small_tokens.mean() * setting.small_tokens.mean()
    target = target_only.seconds / target_only.target_tokens.mean() * setting.target_tokens.mean()
    return float((draft + target) / target_only.seconds)


def curve_area(
    points: Sequence[RouterPoint], ends: Sequence[RouterPoint], problems: npt.NDArray[np.intp], *, grid: int = 101
) -> float:
    """Returns the area under a router's curve: mean accuracy over the tokens of the large model, from none to all.

    Straight lines join the points of a router and the two ends, where one model writes everything; choosing randomly
    between two points gives the points between them. `problems` are indices, repeated ones count repeatedly.
    """
    ordered = sorted(
        (float(p.target_tokens[problems].mean()), float(p.accuracy[problems].mean())) for p in (*points, *ends)
    )
    tokens, accuracy = zip(*ordered, strict=True)
    most = max(float(end.target_tokens[problems].mean()) for end in ends)
    return float(np.interp(np.linspace(0, most, grid), tokens, accuracy).mean())


def compare_areas(
    a: Sequence[RouterPoint], b: Sequence[RouterPoint], ends: Sequence[RouterPoint], *, draws: int = 2000, seed: int = 0
) -> PairedDifference:
    """Returns by how much the area of `a` exceeds that of `b`, by a paired bootstrap over problems."""
    count = len(ends[0].accuracy)
    rng = np.random.default_rng(seed)

    def difference(problems: npt.NDArray[np.intp]) -> float:
        return curve_area(a, ends, problems) - curve_area(b, ends, problems)

    samples = [difference(rng.integers(count, size=count)) for _ in range(draws)]
    low, high = np.quantile(samples, (0.025, 0.975))
    return PairedDifference(difference(np.arange(count)), float(low), float(high), count)


def cheapest_within(points: Sequence[RouterPoint], goal: float) -> RouterPoint | None:
    """Returns the point of fewest large-model tokens with at least this accuracy; None if there is none."""
    reached = [point for point in points if point.accuracy.mean() >= goal]
    return min(reached, key=lambda point: float(point.target_tokens.mean()), default=None)
