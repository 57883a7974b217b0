"""Draws the plots of the benchmarks; needs matplotlib, which is an extra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reason.bench.replay import ReplayRow

Curve = tuple[Sequence[float], Sequence[float]]
Row = dict[str, Any]  # plain data of a result


def require_matplotlib() -> None:
    """Checks that matplotlib is installed, before hours of measuring. Raises: ValueError."""
    if find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib: pip install 'reason-search[plots]', or leave the plot out")


def draw_panels(
    file: Path,
    panels: Mapping[str, Mapping[str, Curve]],
    *,
    x: str,
    y: str,
    logarithmic: bool = True,
    level: float | None = None,
) -> None:
    """Draws a PNG: one panel per title, with one line per name and a dashed line at `level`."""
    require_matplotlib()
    from matplotlib.figure import Figure  # no pyplot: nothing global, no window

    figure = Figure(figsize=(5.2 * len(panels) + 2.4, 4.2), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, curves) in zip(all_axes, panels.items(), strict=True):
        for name, (xs, ys) in curves.items():
            axes.plot(xs, ys, marker="o", markersize=4, label=name)
        if logarithmic:
            axes.set_xscale("log", base=2)
        if ticks := _choose_ticks(curves, logarithmic):
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        if level is not None:
            axes.axhline(level, linestyle="--", linewidth=1, color="grey")
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel(y)
    handles, names = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", fontsize=8)
    figure.savefig(file, dpi=120)


def draw_over_time(file: Path, series: Mapping[str, Curve], *, y: str) -> None:
    """Draws a PNG: one strip per name, with a common time axis and scale."""
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


def plot_acceptance(file: Path, result: Row) -> None:
    """Draws tokens per forward pass over draft nodes."""
    panels = _group_curves(result["acceptance"], over="nodes", of="tokens_per_forward")
    draw_panels(file, panels, x="draft nodes per branch", y="tokens per forward, mean over families")


def plot_speed(file: Path, result: Row) -> None:
    """Draws speed relative to plain decoding over live branches."""
    panels = _group_curves(result["speed"], over="live", of="speed")
    draw_panels(file, panels, x="live branches", y="tokens per second, plain = 1", level=1.0)


def plot_replay(file: Path, rows: Sequence[ReplayRow]) -> None:
    """Draws accepted length over the number of the trajectory."""
    panels: dict[str, dict[str, Curve]] = {}
    for row in rows:
        lengths = row["by_trajectory"]
        curves = panels.setdefault(f"{row['nodes']} nodes", {})
        curves[row["drafter"]] = (range(1, 1 + len(lengths)), lengths)
    draw_panels(file, panels, x="trajectory", y="tokens per forward", logarithmic=False)


def _group_curves(rows: Iterable[Row], *, over: str, of: str) -> dict[str, dict[str, Curve]]:
    """One panel per temperature, one curve per setup."""
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for row in rows:
        xs, ys = panels.setdefault(f"T = {row['temperature']:g}", {}).setdefault(row["setup"], ([], []))
        xs.append(row[over])
        ys.append(row[of])
    return {title: dict(curves) for title, curves in panels.items()}


def _choose_ticks(curves: Mapping[str, Curve], logarithmic: bool) -> list[float]:
    """Ticks at the points where these are few and integers, else powers of two; on a linear axis matplotlib's own."""
    ticks = sorted({x for xs, _ in curves.values() for x in xs})
    if len(ticks) <= 16 and all(float(tick).is_integer() for tick in ticks):
        return ticks
    if not logarithmic:
        return []
    return [2.0**power for power in range(int(log2(ticks[0])), int(log2(ticks[-1])) + 2)]
