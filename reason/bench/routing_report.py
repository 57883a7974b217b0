"""The comparison of routers as a page: what came out in sentences, a table, and the curves' areas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reason.bench.plots import Curve, draw
from reason.bench.routing import Routed, area, cheapest_within, compare_areas
from reason.bench.tables import markdown
from reason.runs.metrics import paired_bootstrap

Sweeps = Mapping[str, Sequence[Routed]]  # by the router

ENDS = ("draft_only", "target_only")


@dataclass(frozen=True)
class Race:
    """Seconds of a setting over those of target_only, run beside it: one ratio for each repetition. `limits` are the
    least the same tokens could take, see `routing.least_seconds`."""

    name: str
    speculation: str
    ratios: Sequence[float]
    limits: Sequence[float]


def report(
    sweeps: Mapping[float, Sweeps],
    races: Sequence[Race],
    *,
    command: str,
    machine: Mapping[str, Any],
    about: str,
    ratios: Sequence[float],
    plot: Path | None,
) -> str:
    """The page in Markdown. `sweeps` by temperature; `ratios` are prices of a large-model token."""
    parts = ["# Step-level routers compared", f"`{command}`", ", ".join(f"{k} {v}" for k, v in machine.items()), about]
    if plot is not None:
        parts.append(f"![Accuracy against the large model's tokens]({plot.name})")
    for temperature, found in sweeps.items():
        parts += [
            f"## Temperature {temperature:g}",
            "\n".join(f"- {line}" for line in findings(found)),
            _table(found, ratios),
            _areas(found),
        ]
    if races:
        parts += ["## Wall time against target_only, side by side", _races(races)]
    return "\n\n".join(parts) + "\n"


def findings(found: Sweeps) -> list[str]:
    """In sentences: what the routers reach, and with how much of the large model."""
    (draft,), (target,) = found["draft_only"], found["target_only"]
    most, goal = target.target.mean(), target.accuracy.mean() - 0.01
    lines = [f"The small model alone is right in {draft.accuracy.mean():.3f}, the large one in {_accuracy(target)}."]
    for router in (name for name in found if name not in ENDS):
        point = cheapest_within(found[router], goal)
        if point is None:
            top = max(found[router], key=lambda point: float(point.accuracy.mean()))
            lines.append(f"{router} does not come within a point of the large model: {_accuracy(top)} at most.")
        else:
            lines.append(
                f"{router} comes within a point of the large model with {point.target.mean() / most:.2f} of its tokens "
                f"({point.setting.name}: {_accuracy(point)})."
            )
    return lines


def draw_curves(file: Path, sweeps: Mapping[float, Sweeps]) -> None:
    """A PNG: a panel for each temperature, a line for each router. *Mutates* the file."""
    panels = {
        f"T = {temperature:g}": {router: _curve(points) for router, points in found.items()}
        for temperature, found in sweeps.items()
    }
    draw(file, panels, x="large model's tokens per sample", y="accuracy of a sample", logarithmic=False)


def _curve(points: Sequence[Routed]) -> Curve:
    placed = sorted((float(p.target.mean()), float(p.accuracy.mean())) for p in points)
    return [tokens for tokens, _ in placed], [accuracy for _, accuracy in placed]


def _table(found: Sweeps, ratios: Sequence[float]) -> str:
    (target,) = found["target_only"]
    head = ["router", "accuracy", "large tokens", "share", "large passes", "small tokens", "thrown away"]
    head += ["steps rewritten", *(f"cost at 1:{ratio:g}" for ratio in ratios), "seconds a problem"]
    rows = [
        [
            p.setting.name,
            _accuracy(p),
            f"{p.target.mean():.1f}",
            f"{p.target.mean() / target.target.mean():.2f}",
            f"{p.forwards.mean():.1f}",
            f"{p.draft.mean():.1f}",
            f"{p.wasted.mean():.1f}",
            f"{p.rewritten.sum() / p.steps.sum():.0%}",
            *(f"{p.cost(ratio).mean() / target.cost(ratio).mean():.2f}" for ratio in ratios),
            f"{p.seconds:.2f}",
        ]
        for points in found.values()
        for p in points
    ]
    return markdown(head, rows)


def _areas(found: Sweeps) -> str:
    ends = [found[name][0] for name in ENDS]
    every = np.arange(len(ends[0].accuracy))
    rows = []
    ours = found.get("arbitrage", ())
    for router, points in found.items():
        if router not in ENDS:
            apart = compare_areas(ours, points, ends) if ours and router != "arbitrage" else None
            told = "" if apart is None else f"{apart.value:+.4f} ({apart.low:+.4f} to {apart.high:+.4f})"
            rows.append([router, f"{area(points, ends, every):.4f}", told])
    return markdown(["router", "area", "arbitrage is larger by"], rows)


def _races(races: Sequence[Race]) -> str:
    rows = [
        [
            r.name,
            r.speculation,
            f"{np.median(r.ratios):.2f}",
            ", ".join(f"{ratio:.2f}" for ratio in r.ratios),
            f"{np.median(r.limits):.2f}",
        ]
        for r in races
    ]
    head = ["router", "speculation", "seconds, target_only = 1 (median)", "each run", "least for its tokens"]
    return markdown(head, rows)


def _accuracy(point: Routed) -> str:
    interval = paired_bootstrap(point.accuracy, np.zeros(len(point.accuracy)))
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"
