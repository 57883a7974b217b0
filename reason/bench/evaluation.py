"""Which search is worth its compute: every arm against best-of-N, weighted and majority vote at equal tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reason.bench.runs import Outcome
from reason.runs.metrics import Difference, Sample, at_most, best, curve, majority, paired_bootstrap, weighted
from reason.runs.result import samples_of, spent_of
from reason.runs.result_file import Row

Floats = npt.NDArray[np.float64]

SAMPLING = ("best_of_n", "self_consistency")
"""Searches that sample whole solutions: what tree search has to beat."""

BARS: dict[str, Callable[[Sequence[Sample]], float]] = {
    "best-of-N": best,
    "weighted vote": weighted,
    "majority vote": majority,
}


@dataclass(frozen=True)
class Summary:
    """One arm in numbers; all but `engine_kv` and `busy` are means per problem.

    accuracy, low, high  of the chosen answers, with the 95 % interval of a bootstrap over problems
    forwards             target forward passes, summed over branches
    seconds, rounds      of the whole run, divided among its problems; a round is a forward pass for the whole batch
    frontier_kv, kept_kv, peak_kv   see `search.kv.KVUse`
    engine_kv            what the engine's running branches of a problem held, measured
    busy                 share of the time the engine had work
    """

    search: str
    width: int
    accuracy: float
    low: float
    high: float
    tokens: float
    forwards: float
    scorer_calls: float
    scored_tokens: float
    seconds: float
    rounds: float
    frontier_kv: float
    kept_kv: float
    peak_kv: float
    engine_kv: float | None
    busy: float | None
    problems: int


@dataclass(frozen=True)
class AtEqualTokens:
    """An arm against a way of choosing among as many samples as its tokens buy.

    samples   how many that is, of those that were drawn
    enough    whether enough were drawn to spend as much as the arm did
    """

    bar: str
    samples: int
    enough: bool
    difference: Difference


def right(rows: Sequence[Row]) -> Floats:
    """Whether the chosen answer of each problem is right, `[P]`."""
    return np.array([row["grade"] == "right" for row in rows], dtype=np.float64)


def tokens_per_problem(rows: Sequence[Row]) -> float:
    """Generated tokens per problem."""
    return sum(spent_of(row).tokens for row in rows) / len(rows)


def summarise(outcome: Outcome) -> Summary:
    """An arm in numbers."""
    rows, totals = outcome.rows, outcome.totals
    spent = [spent_of(row) for row in rows]
    interval = paired_bootstrap(right(rows), np.zeros(len(rows)))

    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / len(values)

    return Summary(
        search=outcome.arm.search,
        width=outcome.arm.width,
        accuracy=interval.value,
        low=interval.low,
        high=interval.high,
        tokens=mean([s.tokens for s in spent]),
        forwards=mean([s.forwards for s in spent]),
        scorer_calls=mean([s.scorer_calls for s in spent]),
        scored_tokens=mean([s.scored_tokens for s in spent]),
        seconds=outcome.per_problem("seconds"),
        rounds=outcome.per_problem("forwards"),
        frontier_kv=mean([row["kv"]["frontier_tokens"] for row in rows]),
        kept_kv=mean([row["kv"]["kept_tokens"] for row in rows]),
        peak_kv=mean([row["kv"]["peak_tokens"] for row in rows]),
        engine_kv=totals.get("kv_tokens_per_problem"),
        busy=totals.get("busy"),
        problems=len(rows),
    )


def at_equal_tokens(arm: Outcome, samples: Outcome) -> list[AtEqualTokens]:
    """The arm against every bar, each with as many of these samples as the arm's tokens buy (at least one).

    Where there are more, a bar's value of a problem is the mean over subsets of that size.
    """
    drawn = _drawn(samples)
    per_sample = tokens_per_problem(samples.rows) / drawn
    affordable = max(1, round(tokens_per_problem(arm.rows) / per_sample))
    k = min(affordable, drawn)
    return [
        AtEqualTokens(name, k, affordable <= drawn, paired_bootstrap(right(arm.rows), _bar(samples.rows, rule, k)))
        for name, rule in BARS.items()
    ]


def bar_curve(samples: Outcome, rule: str) -> tuple[list[float], list[float]]:
    """Tokens per problem and accuracy of a bar at 1, 2, 4, ... of these samples."""
    per_sample = tokens_per_problem(samples.rows) / _drawn(samples)
    points = curve([samples_of(row) for row in samples.rows], BARS[rule], rule)
    return [point.n * per_sample for point in points], [point.value for point in points]


def tokens_to_reach(samples: Outcome, rule: str, accuracy: float) -> float | None:
    """Tokens per problem at which a bar first reaches this accuracy, between its points; None if it never does."""
    tokens, accuracies = bar_curve(samples, rule)
    for i, reached in enumerate(accuracies):
        if reached >= accuracy:
            if i == 0:
                return tokens[0]
            share = (accuracy - accuracies[i - 1]) / (reached - accuracies[i - 1])
            return float(tokens[i - 1] * (tokens[i] / tokens[i - 1]) ** share)
    return None


def by_width(outcomes: Sequence[Outcome], search: str) -> Mapping[int, Outcome]:
    """A search's outcomes by width."""
    return {o.arm.width: o for o in outcomes if o.arm.search == search}


def _drawn(samples: Outcome) -> int:
    """Samples of every problem that did not fail."""
    return min((len(row["samples"]) for row in samples.rows if row["samples"]), default=1)


def _bar(rows: Sequence[Row], rule: Callable[[Sequence[Sample]], float], k: int) -> Floats:
    return np.array([at_most(samples_of(row), rule, k) for row in rows], dtype=np.float64)
