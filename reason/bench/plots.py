"""Draws what the benchmarks measured; needs matplotlib, which is an extra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from math import log2
from pathlib import Path
from typing import Any

Curve = tuple[Sequence[float], Sequence[float]]


def require_matplotlib() -> None:
    """Raises: ValueError if there is none; to be called before hours of measuring."""
    if find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib: pip install 'reason-search[plots]', or leave the plot out")


def draw(
    file: Path,
    panels: Mapping[str, Mapping[str, Curve]],
    *,
    x: str,
    y: str,
    logarithmic: bool = True,
    level: float | None = None,
) -> None:
    """A PNG: one panel for each title, in it one line for each name. `level` is marked by a dashed line."""
    require_matplotlib()
    from matplotlib.figure import Figure  # no pyplot: nothing global, no window

    figure = Figure(figsize=(5.2 * len(panels) + 2.4, 4.2), layout="constrained")
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, curves) in zip(every, panels.items(), strict=True):
        for name, (xs, ys) in curves.items():
            axes.plot(xs, ys, marker="o", markersize=4, label=name)
        if logarithmic:
            axes.set_xscale("log", base=2)
        if ticks := _ticks(curves, logarithmic):
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        if level is not None:
            axes.axhline(level, linestyle="--", linewidth=1, color="grey")
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.grid(alpha=0.3)
    every[0].set_ylabel(y)
    handles, names = every[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", fontsize=8)
    figure.savefig(file, dpi=120)


def draw_over_time(file: Path, series: Mapping[str, Curve], *, y: str) -> None:
    """A PNG: one strip for each name, over the same seconds and on the same scale."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 0.9 + 0.95 * len(series)), layout="constrained")
    strips = figure.subplots(len(series), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (name, (xs, ys)) in zip(strips, series.items(), strict=True):
        axes.fill_between(xs, ys, linewidth=0, alpha=0.6)
        axes.set_title(name, loc="left", fontsize=8, pad=2)
        axes.grid(alpha=0.3)
    strips[-1].set_xlabel("seconds")
    figure.supylabel(y, fontsize=9)
    figure.savefig(file, dpi=120)


def plot_acceptance(file: Path, result: dict[str, Any]) -> None:
    """Tokens per forward over draft nodes."""
    panels = _panels(result["acceptance"], over="nodes", of="tokens_per_forward")
    draw(file, panels, x="draft nodes per branch", y="tokens per forward, mean over families")


def plot_speed(file: Path, result: dict[str, Any]) -> None:
    """Speed relative to plain decoding over live branches."""
    panels = _panels(result["speed"], over="live", of="speed")
    draw(file, panels, x="live branches", y="tokens per second, plain = 1", level=1.0)


def plot_replay(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Accepted length over the trajectory's number."""
    panels: dict[str, dict[str, Curve]] = {}
    for row in rows:
        lengths = row["by_trajectory"]
        curves = panels.setdefault(f"{row['nodes']} nodes", {})
        curves[row["drafter"]] = (range(1, 1 + len(lengths)), lengths)
    draw(file, panels, x="trajectory", y="tokens per forward", logarithmic=False)


def _panels(rows: Iterable[dict[str, Any]], *, over: str, of: str) -> dict[str, dict[str, Curve]]:
    """One panel for each temperature, one curve for each contender."""
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for row in rows:
        xs, ys = panels.setdefault(f"T = {row['temperature']:g}", {}).setdefault(row["contender"], ([], []))
        xs.append(row[over])
        ys.append(row[of])
    return {title: dict(curves) for title, curves in panels.items()}


def _ticks(curves: Mapping[str, Curve], logarithmic: bool) -> list[float]:
    """The points' own places where they are few and round, else powers of two; none where the plot knows better."""
    ticks = sorted({x for xs, _ in curves.values() for x in xs})
    if len(ticks) <= 16 and all(float(tick).is_integer() for tick in ticks):
        return ticks
    if not logarithmic:
        return []
    return [2.0**power for power in range(int(log2(ticks[0])), int(log2(ticks[-1])) + 2)]
