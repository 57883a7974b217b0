r"""Computes the accuracy of sampled answers, with standard errors: pass@1, avg@n, pass@n, maj@n, weighted@n, best@n.

`compute_metrics` returns all of them; `maj_at_n` is maj@n, `best_at_n` is best@n, and so on.

Input is one sequence of `GradedSample`s per problem. Every metric gives each problem a value in [0, 1]
(`per_problem_values`) and is the mean of these; its standard error over problems is $s / \sqrt{P}$ with $s$ the
sample standard deviation of the $P$ values. That is the clustered error of Miller (2024), "Adding Error
Bars to Evals", sections 2.1 and 2.2: samples of one problem are not independent, problems are.

All samples of a problem count in `n`; those without an answer do not vote and are never correct. A problem without
samples (it failed) has the value 0. A problem without a gold answer (`is_correct` is None in all of its samples) is
left out.

Ties share: where `t` answers have the most votes, each counts `1/t`. This is the expected accuracy of a
fair draw and does not depend on the order of the samples; a strategy which must name
one answer may differ from it on tied problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from search.voting import tally_votes

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GradedSample:
    """One solution: its canonical answer, whether that is right, and its score.

    `answer` None is "no answer found", `score` None "not scored"; `right` is `Grade.right`.
    """

    answer: str | None
    is_correct: bool | None
    score: float | None = None


MetricRule = Callable[[Sequence[GradedSample]], float]
"""Value in [0, 1] of the samples of one problem."""


@dataclass(frozen=True)
class MetricEstimate:
    """`value` in [0, 1] over `problems` problems of `n` samples; `stderr` None for fewer than two problems."""

    name: str
    value: float
    stderr: float | None
    problems: int
    n: int


@dataclass(frozen=True)
class PairedDifference:
    """`value` = mean(a) - mean(b) over the same problems, and its 95 % interval `[low, high]`."""

    value: float
    low: float
    high: float
    problems: int


def avg_at_n(samples: Sequence[GradedSample]) -> float:
    """avg@n: the share of correct samples, which is the expected accuracy of one sample."""
    return sum(s.is_correct is True for s in samples) / len(samples) if samples else 0.0


def pass_at_k(samples: Sequence[GradedSample], k: int) -> float:
    """pass@k: the probability that at least one of `k` samples, drawn without replacement, is correct.

    Unbiased: 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, section 2.1). `k > n` is taken as `n`.

    >>> pass_at_k([GradedSample("1", True), GradedSample("2", False), GradedSample("3", False)], 2)
    0.6666666666666667
    """
    n, k = len(samples), min(k, len(samples))
    wrong = n - sum(s.is_correct is True for s in samples)
    return 1.0 - math.comb(wrong, k) / math.comb(n, k) if samples else 0.0


def maj_at_n(samples: Sequence[GradedSample]) -> float:
    """maj@n: 1 if the most frequent answer is correct, else 0; ties share.

    >>> maj_at_n([GradedSample("1", True), GradedSample("2", False), GradedSample(None, False)])
    0.5
    """
    return _vote(samples, "majority")


def weighted_at_n(samples: Sequence[GradedSample]) -> float:
    """weighted@n: 1 if the answer with the largest sum of scores is correct, else 0; ties share.

    Samples without a score vote with the median score of the others.
    """
    return _vote(samples, "weighted")


def best_at_n(samples: Sequence[GradedSample]) -> float:
    """best@n: 1 if the sample with the highest score, among those with an answer, is correct, else 0; ties share.

    Where more than half of those with an answer have no score, it is `weighted_at_n`.
    """
    answered = [s for s in samples if s.answer is not None]
    scored = [(s.score, s.is_correct is True) for s in answered if s.score is not None]
    if len(answered) > 2 * len(scored):
        return weighted_at_n(samples)
    top = max((score for score, _ in scored), default=0.0)
    return _mean(right for score, right in scored if score == top)


def per_problem_values(problems: Sequence[Sequence[GradedSample]], rule: MetricRule) -> Floats:
    """Applies a rule to each problem with a gold answer or without samples; returns `[P]`."""
    return np.array([rule(samples) for samples in _graded(problems)], dtype=np.float64)


def compute_metrics(problems: Sequence[Sequence[GradedSample]]) -> dict[str, MetricEstimate]:
    """Computes all metrics, by name (`maj@16`, ...); weighted and best only where a sample has a score.

    `n` is the largest number of samples of a problem; problems with fewer use what they have. `pass@1` is the
    unbiased estimate from all samples and so equals `avg@n`; both names are in use.

    >>> one, other = [GradedSample("1", True), GradedSample("2", False)], [GradedSample("5", True)] * 2
    >>> compute_metrics([one, other])["maj@2"]
    MetricEstimate(name='maj@2', value=0.75, stderr=0.25, problems=2, n=2)
    """
    n = max((len(samples) for samples in problems), default=0)
    rules: dict[str, MetricRule] = {
        "pass@1": lambda samples: pass_at_k(samples, 1),
        f"avg@{n}": avg_at_n,
        f"pass@{n}": lambda samples: pass_at_k(samples, n),
        f"maj@{n}": maj_at_n,
    }
    if any(s.score is not None for samples in problems for s in samples):
        rules |= {f"weighted@{n}": weighted_at_n, f"best@{n}": best_at_n}
    return {name: mean_metric(per_problem_values(problems, rule), name, n) for name, rule in rules.items()}


def mean_metric(values: Floats, name: str, n: int) -> MetricEstimate:
    """Averages per-problem values, with the standard error; without any problem the value is nan."""
    count = len(values)
    stderr = float(values.std(ddof=1) / math.sqrt(count)) if count > 1 else None
    return MetricEstimate(name, float(values.mean()) if count else math.nan, stderr, count, n)


def accuracy_curve(
    problems: Sequence[Sequence[GradedSample]],
    rule: MetricRule,
    name: str,
    *,
    subsets: int = 128,
    seed: int = 0,
) -> list[MetricEstimate]:
    """Computes a metric at 1, 2, 4, ... samples, up to the smallest number that any problem has.

    A problem's value at `k` is the mean over all subsets of `k` of its samples, or over `subsets` random
    ones where there are more; the same ones for every rule and run. The error stays the one over problems.

    >>> samples = [GradedSample("1", True)] * 3 + [GradedSample("2", False)]
    >>> [round(m.value, 2) for m in accuracy_curve([samples], maj_at_n, "maj")]
    [0.75, 0.75, 1.0]
    """
    sizes = [len(samples) for samples in problems if samples]
    ks = [1 << i for i in range(min(sizes, default=0).bit_length())]
    metrics = []
    for k in ks:

        def value_at_k(samples: Sequence[GradedSample], k: int = k) -> float:
            return mean_over_subsets(samples, rule, k, subsets=subsets, seed=seed)

        metrics.append(mean_metric(per_problem_values(problems, value_at_k), f"{name}@{k}", k))
    return metrics


def mean_over_subsets(
    samples: Sequence[GradedSample],
    rule: MetricRule,
    k: int,
    *,
    subsets: int = 128,
    seed: int = 0,
) -> float:
    """Applies `rule` to `k` of these samples, or to all if there are fewer: the mean over all subsets of size `k`, or
    over `subsets` random ones where there are more.

    >>> mean_over_subsets([GradedSample("1", True), GradedSample("2", False)], avg_at_n, 1)
    0.5
    """
    k = min(k, len(samples))
    if not samples:
        return 0.0
    if math.comb(len(samples), k) <= subsets:
        return _mean(rule(chosen) for chosen in combinations(samples, k))
    rng = np.random.default_rng([seed, k])
    draws = (rng.permutation(len(samples))[:k] for _ in range(subsets))
    return _mean(rule([samples[i] for i in draw]) for draw in draws)


def paired_bootstrap(a: Floats, b: Floats, *, seed: int = 0, resamples: int = 10_000) -> PairedDifference:
    """Estimates mean(a) - mean(b), from per-problem values `[P]` of the same problems in the same order.

    The interval is the 2.5 to 97.5 percentile of the mean difference over problems drawn with replacement
    (Efron and Tibshirani 1993, chapter 13). Raises: ValueError for unequal lengths or no problem.

    >>> paired_bootstrap(np.ones(9), np.zeros(9))
    PairedDifference(value=1.0, low=1.0, high=1.0, problems=9)
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(f"a and b must be values of the same problems, got {len(a)} and {len(b)}")
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = np.concatenate(
        [difference[rng.integers(len(a), size=(n, len(a)))].mean(1) for n in _split_count(resamples)]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    return PairedDifference(float(difference.mean()), float(low), float(high), len(a))


def _split_count(total: int, chunk: int = 500) -> Iterator[int]:
    """Splits `total` into parts of at most `chunk`, to bound the memory of the resampling."""
    for _ in range(0, total, chunk):
        yield min(chunk, total)
        total -= chunk


def _graded(problems: Sequence[Sequence[GradedSample]]) -> list[Sequence[GradedSample]]:
    return [samples for samples in problems if not samples or any(s.is_correct is not None for s in samples)]


def _vote(samples: Sequence[GradedSample], voting_rule: str) -> float:
    votes = tally_votes([s.answer for s in samples], [s.score for s in samples], voting_rule)
    top = max(votes.values(), default=0.0)
    winners = [answer for answer, total in votes.items() if total == top]
    return _mean(_mean(s.is_correct is True for s in samples if s.answer == answer) for answer in winners)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else 0.0
