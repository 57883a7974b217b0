"""Compares searches with best-of-N, weighted vote and majority vote at equal generated tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reason.bench.runs import RunOutcome
from reason.runs.metrics import (
    GradedSample,
    PairedDifference,
    accuracy_curve,
    best_at_n,
    maj_at_n,
    mean_over_subsets,
    paired_bootstrap,
    weighted_at_n,
)
from reason.runs.result import ProblemResult

Floats = npt.NDArray[np.float64]

SAMPLING = ("best_of_n", "self_consistency")
"""Searches that sample whole solutions: without settings of their own they are the baselines of the others."""

BASELINE_RULES: dict[str, Callable[[Sequence[GradedSample]], float]] = {
    "best-of-N": best_at_n,
    "weighted vote": weighted_at_n,
    "majority vote": maj_at_n,
}


@dataclass(frozen=True)
class RunSummary:
    """One run in numbers; all but `engine_kv` and `busy` are means per problem, and per seed where there are several.

    accuracy, low, high  of the chosen answers, with the 95 % interval of a bootstrap over problems
    forwards             target forward passes, summed over branches
    seconds, rounds      of the whole run, divided among its problems; a round is a forward pass for the whole batch
    frontier_kv, kept_kv, peak_kv   see `search.kv.KVFootprint`
    engine_kv            KV tokens held by the running branches of a problem, measured by the engine
    busy                 share of the time in which the engine had work
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
class EqualTokensComparison:
    """A run compared with a baseline rule over as many samples as its tokens buy.

    num_samples     number of these samples, of those that were drawn
    enough_samples  False if all drawn samples together have fewer tokens than the run
    """

    baseline: str
    num_samples: int
    enough_samples: bool
    difference: PairedDifference


def correct_answers(rows: Sequence[ProblemResult]) -> Floats:
    """Returns 1.0 for each problem whose chosen answer is correct, else 0.0, `[P]`; with several seeds their mean."""
    return mean_by_problem(rows, lambda row: row.is_correct)


def mean_by_problem(rows: Sequence[ProblemResult], value_of: Callable[[ProblemResult], float]) -> Floats:
    """Returns the mean over the rows of each problem, `[P]`, in the order in which the problems first appear."""
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row.id, []).append(float(value_of(row)))
    return np.array([math.fsum(some) / len(some) for some in values.values()], dtype=np.float64)


def rows_of_problems(rows: Sequence[ProblemResult], ids: Collection[str]) -> list[ProblemResult]:
    """Returns the rows of these problems."""
    return [row for row in rows if row.id in ids]


def compare_accuracy(one: RunOutcome, other: RunOutcome) -> PairedDifference:
    """Returns how far one run is ahead of another on the problems that both have."""
    shared = {row.id for row in one.rows} & {row.id for row in other.rows}
    return paired_bootstrap(
        correct_answers(rows_of_problems(one.rows, shared)), correct_answers(rows_of_problems(other.rows, shared))
    )


def tokens_per_problem(rows: Sequence[ProblemResult]) -> float:
    """Returns the mean number of generated tokens per problem."""
    return sum(row.usage.tokens for row in rows) / len(rows)


def summarize_run(outcome: RunOutcome) -> RunSummary:
    """Returns a run in numbers."""
    rows, totals = outcome.rows, outcome.totals
    usages = [row.usage for row in rows]
    correct = correct_answers(rows)
    interval = paired_bootstrap(correct, np.zeros(len(correct)))

    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / len(values)

    return RunSummary(
        search=outcome.spec.search,
        width=outcome.spec.width,
        accuracy=interval.value,
        low=interval.low,
        high=interval.high,
        tokens=mean([s.tokens for s in usages]),
        forwards=mean([s.forwards for s in usages]),
        scorer_calls=mean([s.scorer_calls for s in usages]),
        scored_tokens=mean([s.scored_tokens for s in usages]),
        seconds=outcome.per_problem("seconds"),
        rounds=outcome.per_problem("forwards"),
        frontier_kv=mean([row.kv.frontier_tokens for row in rows]),
        kept_kv=mean([row.kv.kept_tokens for row in rows]),
        peak_kv=mean([row.kv.peak_tokens for row in rows]),
        engine_kv=totals.get("kv_tokens_per_problem"),
        busy=totals.get("busy"),
        problems=len(correct),
    )


def compare_at_equal_tokens(outcome: RunOutcome, samples: RunOutcome) -> list[EqualTokensComparison]:
    """Compares a run with every baseline rule over as many of these samples as the run's tokens buy (at least one).

    Where more were drawn, the value of a baseline for a problem is the mean over subsets of that size. They are
    compared on the problems of the run.
    """
    drawn = count_samples(samples)
    rows = rows_of_problems(samples.rows, {row.id for row in outcome.rows})
    per_sample = tokens_per_problem(rows) / drawn
    affordable = max(1, round(tokens_per_problem(outcome.rows) / per_sample))
    k = min(affordable, drawn)
    return [
        EqualTokensComparison(
            name,
            k,
            affordable <= drawn,
            paired_bootstrap(correct_answers(outcome.rows), _baseline_values(rows, rule, k)),
        )
        for name, rule in BASELINE_RULES.items()
    ]


def baseline_curve(samples: RunOutcome, rule: str) -> tuple[list[float], list[float]]:
    """Returns tokens per problem and accuracy of a baseline at 1, 2, 4, ... of these samples."""
    per_sample = tokens_per_problem(samples.rows) / count_samples(samples)
    points = accuracy_curve([row.graded_samples for row in samples.rows], BASELINE_RULES[rule], rule)
    return [point.n * per_sample for point in points], [point.value for point in points]


def tokens_to_reach(samples: RunOutcome, rule: str, accuracy: float) -> float | None:
    """Returns the tokens per problem at which a baseline first reaches this accuracy, interpolated; None if never."""
    tokens, accuracies = baseline_curve(samples, rule)
    for i, reached in enumerate(accuracies):
        if reached >= accuracy:
            if i == 0:
                return tokens[0]
            share = (accuracy - accuracies[i - 1]) / (reached - accuracies[i - 1])
            return float(tokens[i - 1] * (tokens[i] / tokens[i - 1]) ** share)
    return None


def index_by_width(outcomes: Sequence[RunOutcome], search: str) -> Mapping[int, RunOutcome]:
    """Returns the outcomes of one search by width."""
    return {o.spec.width: o for o in outcomes if o.spec.search == search}


def count_samples(samples: RunOutcome) -> int:
    """Returns the number of samples per problem; failed problems have none and are left out."""
    return min((len(row.samples) for row in samples.rows if row.samples), default=1)


def _baseline_values(rows: Sequence[ProblemResult], rule: Callable[[Sequence[GradedSample]], float], k: int) -> Floats:
    return mean_by_problem(rows, lambda row: mean_over_subsets(row.graded_samples, rule, k))
