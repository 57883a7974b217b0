"""What the rows of a run add up to: accuracy with standard errors, and what it took."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from decoding.core import Spent
from reason.runs.metrics import Metric, mean_of, summarise
from reason.runs.result import samples_of, spent_of
from reason.runs.result_file import Row

CHOSEN = "chosen"
"""The accuracy of the answers the strategy handed back, beside what other rules make of the same samples."""


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Plain data: problems by grade, metrics as `{"value", "stderr"}`, and everything spent.

    A failed problem counts as not right. Metrics are left out where no problem has a gold answer.
    """
    return {
        "problems": len(rows),
        "errors": sum(row["error"] is not None for row in rows),
        "grades": dict(sorted(Counter(row["grade"] for row in rows if row["error"] is None).items())),
        "metrics": {name: _plain(metric) for name, metric in metrics_of(rows).items()},
        "spent": asdict(reduce(add, map(spent_of, rows), Spent())),
        "out_of_budget": sum(row["stopped"] == "budget" for row in rows),
    }


def metrics_of(rows: Sequence[Row]) -> dict[str, Metric]:
    """`chosen` and the metrics of the samples, in that order; empty where nothing can be graded."""
    graded = [row for row in rows if row["gold"] is not None]
    if not graded:
        return {}
    right = np.array([row["grade"] == "right" for row in graded], dtype=np.float64)
    sampled = summarise([samples_of(row) for row in graded])
    chosen = mean_of(right, CHOSEN, next(iter(sampled.values())).n)
    return {CHOSEN: chosen} | sampled


def accuracy(rows: Sequence[Row]) -> float | None:
    """The share of chosen answers that are right; None where nothing can be graded."""
    graded = [row["grade"] == "right" for row in rows if row["gold"] is not None]
    return sum(graded) / len(graded) if graded else None


def _plain(metric: Metric) -> dict[str, float | None]:
    return {
        "value": None if math.isnan(metric.value) else round(metric.value, 6),
        "stderr": None if metric.stderr is None else round(metric.stderr, 6),
    }
