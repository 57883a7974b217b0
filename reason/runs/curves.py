"""Computes accuracy against the number of samples from the saved samples of a run; nothing is generated again."""

from __future__ import annotations

from collections.abc import Sequence

from reason.runs.gather import FoundRun
from reason.runs.metrics import (
    MetricEstimate,
    MetricRule,
    accuracy_curve,
    avg_at_n,
    best_at_n,
    maj_at_n,
    pass_at_k,
    weighted_at_n,
)

Curves = dict[str, list[MetricEstimate]]


def compute_curves(run: FoundRun) -> Curves:
    """Returns pass@k, maj@k and, where samples have scores, weighted@k and best@k, at k = 1, 2, 4, ...

    Samples of a search over steps share their beginnings: their curves say how its solutions vote, not what as many
    independent samples would.

    Raises: ValueError for a run without results or without gold answers.
    """
    if run.broken is not None:
        raise ValueError(f"{run.folder}: {run.broken}")
    problems = [result.graded_samples for result in run.results]
    if not any(sample.is_correct is not None for samples in problems for sample in samples):
        raise ValueError(f"{run.folder}: no problem has a gold answer")
    rules: dict[str, MetricRule] = {"pass": lambda samples: pass_at_k(samples, len(samples)), "maj": maj_at_n}
    if any(sample.score is not None for samples in problems for sample in samples):
        rules |= {"weighted": weighted_at_n, "best": best_at_n}
    return {name: accuracy_curve(problems, rule, name) for name, rule in ({"avg": avg_at_n} | rules).items()}


def curve_rows(curves: Curves) -> tuple[list[str], list[Sequence[str]]]:
    """Returns the header and rows of a table: a row per number of samples, a column per metric with standard errors."""
    header = ["samples", *curves]
    rows: list[Sequence[str]] = []
    for points in zip(*curves.values(), strict=True):
        rows.append([str(points[0].n), *map(_format_estimate, points)])
    return header, rows


def _format_estimate(point: MetricEstimate) -> str:
    return f"{point.value:.3f}" + ("" if point.stderr is None else f" ± {point.stderr:.3f}")
