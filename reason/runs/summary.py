"""Sums up the rows of a run: accuracy with standard errors, and the compute that was used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from decoding.core import Usage
from reason.runs.metrics import MetricEstimate, compute_metrics, mean_metric
from reason.runs.result import ProblemResult

RunSummary = Mapping[str, Any]
"""Summary of a run as plain data: the keys of `summarise_results` and those of the run's metadata and totals."""

CHOSEN = "chosen"
"""Name of the accuracy of the answers that the strategy chose, beside what other rules make of the same samples."""

SHAPE_STATISTICS = {
    "steps": "steps per tree",
    "depth": "steps on the longest path of a tree",
    "branching": "continuations per continued step",
    "shared": "share of the tokens of all paths that another path already holds",
}
"""Statistics of the shape of trees (`search.tree_export`), with their meaning; all are means over problems."""


def summarise_results(results: Sequence[ProblemResult]) -> dict[str, Any]:
    """Returns plain data: problems by grade, metrics as `{"value", "stderr"}`, and the total usage.

    A failed problem counts as not correct. Metrics are left out where no problem has a gold answer. `unscored` counts
    solutions without a score in a run whose other solutions have one; `cut` those without an answer that ended
    at a limit or inside their thought, and `unfinished_thoughts` the latter, answer or not, of all `solutions`;
    `dropped` those that the search gave up, which count in neither.
    """
    samples = [sample for result in results for sample in result.samples]
    return {
        "problems": len(results),
        "errors": sum(result.error is not None for result in results),
        "grades": dict(sorted(Counter(result.grade.value for result in results if result.error is None).items())),
        "metrics": {name: _plain_metric(metric) for name, metric in result_metrics(results).items()},
        "usage": asdict(reduce(add, (result.usage for result in results), Usage())),
        "tree_shape": {name: round(value, 6) for name, value in mean_shape(results).items()},
        "untrusted": sum(result.is_trusted is False for result in results),
        "unscored": count_unscored(results),
        "solutions": len(samples),
        "cut": sum(sample.is_cut for sample in samples),
        "unfinished_thoughts": sum(sample.is_thought_finished is False and not sample.is_dropped for sample in samples),
        "dropped": sum(sample.is_dropped for sample in samples),
        "out_of_budget": sum(result.stopped == "budget" for result in results),
        **summarise_allocation(results),
    }


def summarise_allocation(results: Sequence[ProblemResult]) -> dict[str, Any]:
    """Returns how many samples were given in all, and at least, in the median and at most per problem.

    Empty for a run that divides no samples among its problems.
    """
    counts = sorted(count for result in results if isinstance(count := result.metadata.get("allocated"), int))
    if not counts:
        return {}
    middle = float(np.median(counts))
    return {"allocated": {"samples": sum(counts), "least": counts[0], "median": middle, "most": counts[-1]}}


def count_unscored(results: Sequence[ProblemResult]) -> int:
    """Counts the solutions without a score; 0 where none has one, as in a run without a scorer."""
    scores = [sample.score for result in results for sample in result.samples if not sample.is_dropped]
    return 0 if all(score is None for score in scores) else scores.count(None)


def result_metrics(results: Sequence[ProblemResult]) -> dict[str, MetricEstimate]:
    """Computes `chosen` and the metrics of the samples (`maj@n`, ...), in that order; empty without gold answers."""
    graded = [result for result in results if result.has_gold]
    if not graded:
        return {}
    correct_P = np.array([result.is_correct for result in graded], dtype=np.float64)
    sampled = compute_metrics([result.graded_samples for result in graded])
    chosen = mean_metric(correct_P, CHOSEN, next(iter(sampled.values())).n)
    return {CHOSEN: chosen} | sampled


def chosen_accuracy(results: Sequence[ProblemResult]) -> float | None:
    """Returns the share of chosen answers that are correct; None where no problem has a gold answer."""
    correct = [result.is_correct for result in results if result.has_gold]
    return sum(correct) / len(correct) if correct else None


def mean_shape(results: Sequence[ProblemResult]) -> dict[str, float]:
    """Averages the statistics of the trees' shapes, by the names of `SHAPE_STATISTICS`; empty without trees."""
    shapes = [result.shape for result in results if result.shape is not None]
    if not shapes:
        return {}
    return {
        "steps": float(np.mean([shape.num_nodes for shape in shapes])),
        "depth": float(np.mean([shape.max_depth for shape in shapes])),
        "branching": float(np.mean([shape.mean_branching for shape in shapes])),
        "shared": float(np.mean([shape.shared_token_share for shape in shapes])),
    }


def _plain_metric(metric: MetricEstimate) -> dict[str, float | None]:
    return {
        "value": None if math.isnan(metric.value) else round(metric.value, 6),
        "stderr": None if metric.stderr is None else round(metric.stderr, 6),
    }
