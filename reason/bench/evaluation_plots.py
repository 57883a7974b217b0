"""Draws the comparison of searches: accuracy against tokens, and the occupancy of the engine over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reason.bench.evaluation import BASELINE_RULES, SAMPLING, baseline_curve, find_baseline, index_by_width
from reason.bench.plots import Curve, draw_over_time, draw_panels
from reason.bench.problem_values import correct_answers, tokens_per_problem
from reason.bench.runs import RunOutcome


def draw_plots(outcomes: Sequence[RunOutcome], stem: Path) -> dict[str, Path]:
    """Draws the plots; returns the files by caption. Occupancy is drawn for runs that have a timeline."""
    accuracy, occupancy = stem.with_name(stem.name + "-accuracy.png"), stem.with_name(stem.name + "-occupancy.png")
    baseline = find_baseline(outcomes)
    curves: dict[str, Curve] = {}
    if baseline is not None:
        curves |= {f"{rule} (baseline)": baseline_curve(baseline, rule) for rule in BASELINE_RULES}
    for search in dict.fromkeys(o.spec.search for o in outcomes if o.spec.search not in SAMPLING):
        by_width = index_by_width(outcomes, search)
        points = sorted((tokens_per_problem(o), float(correct_answers(o.rows).mean())) for o in by_width.values())
        curves[search] = ([tokens for tokens, _ in points], [value for _, value in points])
    draw_panels(accuracy, {"": curves}, x="tokens per problem", y="accuracy of the chosen answer")
    files = {"Accuracy against tokens": accuracy}
    with_timeline = [o for o in outcomes if o.timeline and o is not baseline] or [o for o in outcomes if o.timeline]
    if with_timeline:
        widest = max(o.spec.width for o in with_timeline)
        series = {
            o.spec.search: ([t for t, _, _ in o.timeline], [running for _, running, _ in o.timeline])
            for o in with_timeline
            if o.spec.width == widest
        }
        draw_over_time(occupancy, series, y=f"running branches, width {widest}")
        files[f"Running branches over time, width {widest}"] = occupancy
    return files
