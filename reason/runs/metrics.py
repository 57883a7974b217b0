r"""Accuracy of sampled answers, with standard errors: pass@1, avg@n, pass@n, maj@n, weighted@n, best@n.

Input is one sequence of `Sample`s per problem. Every metric first gives each problem a value in [0, 1]
(`per_problem`) and is the mean of these; its standard error over problems is $s / \sqrt{P}$ with $s$ the
sample standard deviation of the $P$ values. That is the clustered error of Miller (2024), "Adding Error
Bars to Evals", sections 2.1 and 2.2: samples of one problem are not independent, problems are.

What counts. All samples of a problem count in `n`; those without an answer do not vote and are never
right. A problem without samples (it failed) has the value 0. A problem without a gold answer (`right` is
None in all of its samples) is left out.

Ties share: where `t` answers have the most votes, each counts `1/t`. This is the expected accuracy of a
fair draw, it does not depend on the order of the samples, and it favours nobody; a strategy which must name
one answer may differ from it on tied problems.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """One solution: its canonical answer, whether that is right, and its score.

    `answer` None is "no answer found", `score` None "not scored"; `right` is `Grade.right`.
    """

    answer: str | None
    right: bool | None
    score: float | None = None


@dataclass(frozen=True)
class Metric:
    """`value` in [0, 1] over `problems` problems of `n` samples; `stderr` None for fewer than two problems."""

    name: str
    value: float
    stderr: float | None
    problems: int
    n: int


@dataclass(frozen=True)
class Difference:
    """`value` = mean(a) - mean(b), and the 95 % interval `[low, high]` it was found in."""

    value: float
    low: float
    high: float
    problems: int


def avg(samples: Sequence[Sample]) -> float:
    """The share of samples that are right: the expected accuracy of a single one."""
    return sum(s.right is True for s in samples) / len(samples) if samples else 0.0


def pass_at(samples: Sequence[Sample], k: int) -> float:
    """The probability that at least one of `k` samples, drawn without replacement, is right.

    Unbiased: 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, section 2.1). `k > n` is taken as `n`.

    >>> pass_at([Sample("1", True), Sample("2", False), Sample("3", False)], 2)
    0.6666666666666667
    """
    n, k = len(samples), min(k, len(samples))
    wrong = n - sum(s.right is True for s in samples)
    return 1.0 - math.comb(wrong, k) / math.comb(n, k) if samples else 0.0


def majority(samples: Sequence[Sample]) -> float:
    """Whether the most frequent answer is right; ties share.

    >>> majority([Sample("1", True), Sample("2", False), Sample(None, False)])
    0.5
    """
    return _vote((s, 1.0) for s in samples)


def weighted(samples: Sequence[Sample]) -> float:
    """Whether the answer with the largest sum of scores is right; ties share; samples without a score do not vote."""
    return _vote((s, s.score) for s in samples if s.score is not None)


def best(samples: Sequence[Sample]) -> float:
    """Whether the sample with the highest score is right, among those with an answer and a score; ties share."""
    scored = [(s.score, s.right is True) for s in samples if s.answer is not None and s.score is not None]
    top = max((score for score, _ in scored), default=0.0)
    return _mean(right for score, right in scored if score == top)


def per_problem(problems: Sequence[Sequence[Sample]], rule: Callable[[Sequence[Sample]], float]) -> Floats:
    """The values `[P]` of one rule, one for each problem that has a gold answer (or no samples)."""
    return np.array([rule(samples) for samples in _graded(problems)], dtype=np.float64)


def summarise(problems: Sequence[Sequence[Sample]]) -> dict[str, Metric]:
    """All metrics under their names (`maj@16`, ...); weighted and best only where something was scored.

    `n` is the largest number of samples of a problem; problems with fewer use what they have. `pass@1` is the
    unbiased estimate from all samples and so equals `avg@n`; both names are in use.

    >>> summarise([[Sample("1", True), Sample("2", False)], [Sample("5", True), Sample("5", True)]])["maj@2"]
    Metric(name='maj@2', value=0.75, stderr=0.25, problems=2, n=2)
    """
    n = max((len(samples) for samples in problems), default=0)
    rules: dict[str, Callable[[Sequence[Sample]], float]] = {
        "pass@1": lambda samples: pass_at(samples, 1),
        f"avg@{n}": avg,
        f"pass@{n}": lambda samples: pass_at(samples, n),
        f"maj@{n}": majority,
    }
    if any(s.score is not None for samples in problems for s in samples):
        rules |= {f"weighted@{n}": weighted, f"best@{n}": best}
    return {name: mean_of(per_problem(problems, rule), name, n) for name, rule in rules.items()}


def mean_of(values: Floats, name: str, n: int) -> Metric:
    """The mean of per-problem values and its standard error; the value of no problem at all is nan."""
    count = len(values)
    stderr = float(values.std(ddof=1) / math.sqrt(count)) if count > 1 else None
    return Metric(name, float(values.mean()) if count else math.nan, stderr, count, n)


def curve(
    problems: Sequence[Sequence[Sample]],
    rule: Callable[[Sequence[Sample]], float],
    name: str,
    *,
    subsets: int = 128,
    seed: int = 0,
) -> list[Metric]:
    """`rule` at 1, 2, 4, ... samples, up to the smallest number any problem has; for accuracy against samples.

    A problem's value at `k` is the mean over all subsets of `k` of its samples, or over `subsets` random
    ones where there are more; the same ones for every rule and run. The error stays the one over problems.

    >>> [round(m.value, 2) for m in curve([[Sample("1", True)] * 3 + [Sample("2", False)]], majority, "maj")]
    [0.75, 0.75, 1.0]
    """
    sizes = [len(samples) for samples in problems if samples]
    ks = [1 << i for i in range(min(sizes, default=0).bit_length())]
    metrics = []
    for k in ks:
        values = per_problem(problems, lambda samples, k=k: at_most(samples, rule, k, subsets=subsets, seed=seed))  # type: ignore[misc]
        metrics.append(mean_of(values, f"{name}@{k}", k))
    return metrics


def at_most(
    samples: Sequence[Sample],
    rule: Callable[[Sequence[Sample]], float],
    k: int,
    *,
    subsets: int = 128,
    seed: int = 0,
) -> float:
    """What `rule` makes of `k` of these samples, or of all if there are fewer: the mean over all subsets of `k`, or
    over `subsets` random ones where there are more.

    >>> at_most([Sample("1", True), Sample("2", False)], avg, 1)
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


def paired_bootstrap(a: Floats, b: Floats, *, seed: int = 0, resamples: int = 10_000) -> Difference:
    """How much better `a` is than `b` on the same problems: per-problem values `[P]` in the same order.

    The interval is the 2.5 to 97.5 percentile of the mean difference over problems drawn with replacement
    (Efron and Tibshirani 1993, chapter 13). Raises: ValueError for unequal lengths or no problem.

    >>> paired_bootstrap(np.ones(9), np.zeros(9))
    Difference(value=1.0, low=1.0, high=1.0, problems=9)
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(f"a and b must be values of the same problems, got {len(a)} and {len(b)}")
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = np.concatenate([difference[rng.integers(len(a), size=(n, len(a)))].mean(1) for n in _parts(resamples)])
    low, high = np.percentile(means, [2.5, 97.5])
    return Difference(float(difference.mean()), float(low), float(high), len(a))


def _parts(whole: int, most: int = 500) -> Iterator[int]:
    """Numbers of at most `most` that add up."""
    for _ in range(0, whole, most):
        yield min(most, whole)
        whole -= most


def _graded(problems: Sequence[Sequence[Sample]]) -> list[Sequence[Sample]]:
    return [samples for samples in problems if not samples or any(s.right is not None for s in samples)]


def _vote(weights: Iterable[tuple[Sample, float]]) -> float:
    votes: dict[str, list[float]] = defaultdict(list)
    rights: dict[str, list[bool]] = defaultdict(list)
    for sample, weight in weights:
        if sample.answer is not None:
            votes[sample.answer].append(weight)
            rights[sample.answer].append(sample.right is True)
    sums = {answer: math.fsum(weight) for answer, weight in votes.items()}  # exact: no order decides a tie
    top = max(sums.values(), default=0.0)
    return _mean(_mean(rights[answer]) for answer, total in sums.items() if total == top)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else 0.0
