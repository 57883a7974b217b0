"""Estimates the figures of a run, and between two runs, each with its 95 % interval over problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reason.runs.metrics import paired_bootstrap
from reason.runs.papers.spec import Metric
from reason.runs.result import ProblemResult

Floats = NDArray[np.float64]
RESAMPLES, CHUNK = 10_000, 500


class Estimate(NamedTuple):
    """A value and its 95 % interval; `low` and `high` are None for a ratio over fewer than two problems."""

    value: float
    low: float | None
    high: float | None


def estimate_accuracy(results: Sequence[ProblemResult]) -> Estimate | None:
    """Returns the share of right answers with its Wilson interval, which is no point for 2 of 2 problems either.

    None without gold answers.
    """
    from scipy.stats import binomtest  # takes a second to import

    correct = [result.is_correct for result in results if result.has_gold]
    if not correct:
        return None
    interval = binomtest(sum(correct), len(correct)).proportion_ci(method="wilson")
    return Estimate(sum(correct) / len(correct), float(interval.low), float(interval.high))


def estimate_tokens_per_forward(results: Sequence[ProblemResult]) -> Estimate | None:
    """Returns tokens over forward passes, both summed over problems; None where nothing was generated."""
    tokens_P = _array(result.usage.tokens for result in results)
    accepted_P = _array(result.usage.accepted for result in results)
    return bootstrap_ratio(tokens_P, tokens_P - accepted_P)


def estimate_between(metric: Metric, ours: Sequence[ProblemResult], others: Sequence[ProblemResult]) -> Estimate | None:
    """Returns a figure `BETWEEN_RUNS` over the problems that both runs have; None where there are none, or no costs."""
    by_id = {result.id: result for result in others}
    pairs = [(result, by_id[result.id]) for result in ours if result.id in by_id]
    if metric == "accuracy_gain":
        graded = [pair for pair in pairs if pair[0].has_gold]
        if not graded:
            return None
        right_P2 = np.array([[row.is_correct for row in pair] for pair in graded], dtype=np.float64)
        difference = paired_bootstrap(right_P2[:, 0], right_P2[:, 1])
        return Estimate(difference.value, difference.low, difference.high)
    if metric == "kv_ratio":
        return bootstrap_ratio(_array(sum_kv(other) for _, other in pairs), _array(sum_kv(row) for row, _ in pairs))
    rates_P2 = np.array([[_rate(row), _rate(other)] for row, other in pairs], dtype=np.float64).reshape(-1, 2)
    return bootstrap_ratio(rates_P2[:, 0], rates_P2[:, 1])


def sum_kv(result: ProblemResult) -> float:
    """Returns the KV tokens of all open branches before each decision, summed: the KV size of the code of ETS."""
    return result.kv.frontier_tokens * result.kv.steps


def bootstrap_ratio(above_P: Floats, below_P: Floats, *, seed: int = 0) -> Estimate | None:
    """Returns sum(above) / sum(below), and the interval of that ratio over problems drawn with replacement.

    Draws in which nothing is below are left out. None where nothing is below at all.

    >>> bootstrap_ratio(np.array([2.0, 4.0]), np.array([1.0, 2.0]))
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    if not below_P.sum():
        return None
    value = float(above_P.sum() / below_P.sum())
    if len(below_P) < 2:
        return Estimate(value, None, None)
    rng = np.random.default_rng(seed)
    ratios = []
    for _ in range(RESAMPLES // CHUNK):  # not all draws at once: they need gigabytes for large data sets
        draws = rng.integers(len(below_P), size=(CHUNK, len(below_P)))
        above, below = above_P[draws].sum(1), below_P[draws].sum(1)
        ratios.append(above[below > 0] / below[below > 0])
    low, high = np.percentile(np.concatenate(ratios), [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def _rate(result: ProblemResult) -> float:
    return result.usage.tokens / result.usage.seconds if result.usage.seconds else 0.0


def _array(values: object) -> Floats:
    return np.array(list(values), dtype=np.float64)  # type: ignore[call-overload]
