"""Formats the comparison of routers: summary sentences, tables, and the areas under the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reason.bench.plots import Curve, draw_panels
from reason.bench.report import join_report
from reason.bench.routing import RouterPoint, cheapest_within, compare_areas, curve_area
from reason.runs.metrics import paired_bootstrap
from reason.runs.tables import format_markdown

Sweeps = Mapping[str, Sequence[RouterPoint]]  # by the router

ENDS = ("draft_only", "target_only")


@dataclass(frozen=True)
class RouterSpeedRun:
    """Seconds of a setting over those of target_only, run beside it: one ratio per repetition.

    `limits` are the minimum for the same tokens, see `routing.minimum_seconds`.
    """

    name: str
    speculation: str
    ratios: Sequence[float]
    limits: Sequence[float]


def format_report(
    sweeps: Mapping[float, Sweeps],
    speed_runs: Sequence[RouterSpeedRun],
    *,
    command: str,
    machine: Mapping[str, object],
    about: str,
    ratios: Sequence[float],
    plot: Path | None,
) -> str:
    """Returns the report in Markdown. `sweeps` by temperature; `ratios` are prices of a large-model token."""
    parts = [about]
    if plot is not None:
        parts.append(f"![Accuracy against the large model's tokens]({plot.name})")
    for temperature, points in sweeps.items():
        parts += [
            f"## Temperature {temperature:g}",
            "\n".join(f"- {line}" for line in summary_sentences(points)),
            _format_points(points, ratios),
            _format_areas(points),
        ]
    if speed_runs:
        parts += ["## Wall time against target_only, side by side", _format_speed_runs(speed_runs)]
    return join_report("Step-level routers compared", command, parts, machine=machine)


def summary_sentences(sweeps: Sweeps) -> list[str]:
    """Returns sentences: the accuracy that the routers reach, and the share of large-model tokens they need."""
    (draft,), (target,) = sweeps["draft_only"], sweeps["target_only"]
    most, goal = target.target_tokens.mean(), target.accuracy.mean() - 0.01
    lines = [
        f"The small model alone is right in {draft.accuracy.mean():.3f}, the large one in {_format_accuracy(target)}."
    ]
    for router in (name for name in sweeps if name not in ENDS):
        point = cheapest_within(sweeps[router], goal)
        if point is None:
            top = max(sweeps[router], key=lambda point: float(point.accuracy.mean()))
            lines.append(f"{router} does not come within a point of the large model: {_format_accuracy(top)} at most.")
        else:
            lines.append(
                f"{router} comes within a point of the large model with {point.target_tokens.mean() / most:.2f} "
                f"of its tokens ({point.setting.name}: {_format_accuracy(point)})."
            )
    return lines


def draw_router_curves(file: Path, sweeps: Mapping[float, Sweeps]) -> None:
    """Draws a PNG: a panel per temperature, a line per router. *Mutates* the file."""
    panels = {
        f"T = {temperature:g}": {router: _accuracy_curve(points) for router, points in by_router.items()}
        for temperature, by_router in sweeps.items()
    }
    draw_panels(file, panels, x="large model's tokens per sample", y="accuracy of a sample", logarithmic=False)


def _accuracy_curve(points: Sequence[RouterPoint]) -> Curve:
    ordered = sorted((float(p.target_tokens.mean()), float(p.accuracy.mean())) for p in points)
    return [tokens for tokens, _ in ordered], [accuracy for _, accuracy in ordered]


def _format_points(sweeps: Sweeps, ratios: Sequence[float]) -> str:
    (target,) = sweeps["target_only"]
    head = ["router", "accuracy", "large tokens", "share", "large passes", "small tokens", "discarded"]
    head += ["steps rewritten", *(f"cost at 1:{ratio:g}" for ratio in ratios), "seconds a problem"]
    rows = [
        [
            p.setting.name,
            _format_accuracy(p),
            f"{p.target_tokens.mean():.1f}",
            f"{p.target_tokens.mean() / target.target_tokens.mean():.2f}",
            f"{p.target_forwards.mean():.1f}",
            f"{p.small_tokens.mean():.1f}",
            f"{p.discarded_tokens.mean():.1f}",
            f"{p.rewritten_steps.sum() / p.steps.sum():.0%}",
            *(f"{p.cost(ratio).mean() / target.cost(ratio).mean():.2f}" for ratio in ratios),
            f"{p.seconds:.2f}",
        ]
        for points in sweeps.values()
        for p in points
    ]
    return format_markdown(head, rows)


def _format_areas(sweeps: Sweeps) -> str:
    ends = [sweeps[name][0] for name in ENDS]
    problems = np.arange(len(ends[0].accuracy))
    rows = []
    ours = sweeps.get("arbitrage", ())
    for router, points in sweeps.items():
        if router not in ENDS:
            gain = compare_areas(ours, points, ends) if ours and router != "arbitrage" else None
            text = "" if gain is None else f"{gain.value:+.4f} ({gain.low:+.4f} to {gain.high:+.4f})"
            rows.append([router, f"{curve_area(points, ends, problems):.4f}", text])
    return format_markdown(["router", "area", "arbitrage is larger by"], rows)


def _format_speed_runs(speed_runs: Sequence[RouterSpeedRun]) -> str:
    rows = [
        [
            r.name,
            r.speculation,
            f"{np.median(r.ratios):.2f}",
            ", ".join(f"{ratio:.2f}" for ratio in r.ratios),
            f"{np.median(r.limits):.2f}",
        ]
        for r in speed_runs
    ]
    head = ["router", "speculation", "seconds, target_only = 1 (median)", "each run", "minimum for its tokens"]
    return format_markdown(head, rows)


def _format_accuracy(point: RouterPoint) -> str:
    interval = paired_bootstrap(point.accuracy, np.zeros(len(point.accuracy)))
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"
