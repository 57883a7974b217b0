"""Metrics equal brute force, do not depend on the order of samples, and are bounded by pass@n."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason.runs.metrics import (
    GradedSample,
    PairedDifference,
    accuracy_curve,
    avg_at_n,
    best_at_n,
    compute_metrics,
    maj_at_n,
    mean_metric,
    paired_bootstrap,
    pass_at_k,
    per_problem_values,
    weighted_at_n,
)

GOLD = "1"
SAMPLES = st.lists(
    st.tuples(st.sampled_from(["1", "2", "3", None]), st.sampled_from([None, 0.0, 0.25, 0.5, 1.0])), max_size=7
).map(lambda rows: [sample(answer, score) for answer, score in rows])


def sample(answer: str | None, score: float | None = None) -> GradedSample:
    return GradedSample(answer, answer == GOLD, score)


def answers(text: str) -> list[GradedSample]:
    """`"1123-"`: answers 1, 1, 2, 3 and none."""
    return [sample(None if c == "-" else c) for c in text]


@pytest.mark.parametrize(
    ("text", "value"),
    [("112", 1.0), ("122", 0.0), ("12", 0.5), ("123", 1 / 3), ("1---", 1.0), ("--", 0.0), ("", 0.0), ("1122-", 0.5)],
)
def test_majority_equals_values_by_hand(text: str, value: float) -> None:
    assert maj_at_n(answers(text)) == pytest.approx(value)


def test_weighted_and_best_equal_values_by_hand() -> None:
    solutions = [sample("2", 0.9), sample("1", 0.5), sample("1", 0.5), sample(None, 1.0), sample("3", None)]
    assert (weighted_at_n(solutions), best_at_n(solutions), maj_at_n(solutions)) == (1.0, 0.0, 1.0)
    assert weighted_at_n([sample("1", 0.5), sample("2", 0.5)]) == best_at_n([sample("1", 0.5), sample("2", 0.5)]) == 0.5


def test_samples_without_scores_vote_with_the_median_score() -> None:
    assert weighted_at_n([sample("2", 0.2), sample("1"), sample("1"), sample("1")]) == 1.0
    # `best` among four, of which one has a score, is no choice: it becomes the weighted vote
    assert best_at_n([sample("2", 0.2), sample("1"), sample("1"), sample("1")]) == 1.0
    assert best_at_n([sample("2", 0.9), sample("2", 0.8), sample("1"), sample("1")]) == 0.0
    assert weighted_at_n([sample("1")]) == best_at_n([sample("1")]) == 1.0


@given(SAMPLES, st.randoms(use_true_random=False))
def test_metrics_do_not_depend_on_the_order_of_samples(samples: list[GradedSample], rng: random.Random) -> None:
    shuffled = list(samples)
    rng.shuffle(shuffled)
    for rule in (avg_at_n, maj_at_n, weighted_at_n, best_at_n):
        assert rule(samples) == pytest.approx(rule(shuffled))


@given(SAMPLES)
def test_majority_is_the_expected_result_of_a_uniform_tie_break(samples: list[GradedSample]) -> None:
    votes = Counter(s.answer for s in samples if s.answer is not None)
    top = [answer for answer, count in votes.items() if count == max(votes.values())]
    assert maj_at_n(samples) == pytest.approx(top.count(GOLD) / len(top) if top else 0)


@given(SAMPLES)
def test_weighted_with_equal_scores_is_the_majority(samples: list[GradedSample]) -> None:
    same = [GradedSample(s.answer, s.is_correct, 0.7) for s in samples]
    assert weighted_at_n(same) == pytest.approx(maj_at_n(samples))


@given(SAMPLES)
def test_pass_at_n_bounds_every_selection_rule(samples: list[GradedSample]) -> None:
    ceiling = pass_at_k(samples, len(samples))
    assert ceiling == float(any(s.is_correct for s in samples))
    for rule in (avg_at_n, maj_at_n, weighted_at_n, best_at_n):
        assert 0 <= rule(samples) <= ceiling


@given(SAMPLES, st.integers(1, 7))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(samples: list[GradedSample], k: int) -> None:
    subsets = list(combinations(samples, min(k, len(samples))))
    expected = sum(any(s.is_correct for s in chosen) for chosen in subsets) / len(subsets)
    assert pass_at_k(samples, k) == pytest.approx(expected)


def test_metrics_summary_has_every_metric_under_its_name() -> None:
    problems = [[sample("1", 0.9), sample("2", 0.1)], [sample("2", 0.9), sample("1", 0.1)]]
    summary = compute_metrics(problems)
    assert {name: metric.value for name, metric in summary.items()} == {
        "pass@1": 0.5,
        "avg@2": 0.5,
        "pass@2": 1.0,
        "maj@2": 0.5,
        "weighted@2": 0.5,
        "best@2": 0.5,
    }
    assert summary["best@2"].stderr == pytest.approx(0.5)  # values 1 and 0: s = 0.7071, P = 2
    assert set(compute_metrics([answers("12")])) == {"pass@1", "avg@2", "pass@2", "maj@2"}


def test_standard_errors_are_over_problems_not_samples() -> None:
    """A hundred copies of each sample add no information about the problems."""
    problems = [answers("1"), answers("2"), answers("1"), answers("1")]
    once, often = (compute_metrics([p * times for p in problems])["pass@1"] for times in (1, 100))
    assert once.stderr == pytest.approx(often.stderr)
    assert once.stderr == pytest.approx(np.std([1, 0, 1, 1], ddof=1) / 2)
    assert compute_metrics([answers("1")])["pass@1"].stderr is None


def test_standard_error_interval_covers_the_truth() -> None:
    """Mean plus or minus 1.96 standard errors holds the truth about 95 times in 100."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        ps = rng.beta(1, 1, size=100)  # expected accuracy 0.5
        values = rng.binomial(8, ps) / 8
        metric = mean_metric(values, "avg@8", 8)
        assert metric.stderr is not None
        hits += abs(metric.value - 0.5) < 1.96 * metric.stderr
    assert 0.91 < hits / 400 < 0.985


def test_failed_problems_count_as_zero_and_those_without_gold_are_left_out() -> None:
    no_gold = [GradedSample("1", None), GradedSample(None, None)]
    summary = compute_metrics([answers("11"), [], no_gold])
    assert (summary["pass@1"].value, summary["pass@1"].problems) == (0.5, 2)
    late = [GradedSample("1", None), GradedSample("2", False)]  # one comparison did not end
    assert compute_metrics([late])["pass@1"].value == 0.0


def test_metrics_of_no_problems_are_nan() -> None:
    metric = compute_metrics([])["pass@1"]
    assert math.isnan(metric.value)
    assert (metric.stderr, metric.problems) == (None, 0)


def test_accuracy_curve_ends_at_the_metric_and_is_exact_for_few_subsets() -> None:
    problems: list[Sequence[GradedSample]] = [answers("11122"), answers("12---"), answers("22211")]
    points = accuracy_curve(problems, maj_at_n, "maj")
    assert [point.name for point in points] == ["maj@1", "maj@2", "maj@4"]
    for point in points:
        expected = np.mean([np.mean([maj_at_n(c) for c in combinations(p, point.n)]) for p in problems])
        assert point.value == pytest.approx(expected)
    assert points[0].value == pytest.approx(compute_metrics(problems)["avg@5"].value)
    full = accuracy_curve([answers("1112")], maj_at_n, "maj")[-1]
    assert full.value == maj_at_n(answers("1112"))


def test_sampled_accuracy_curve_is_near_the_exact_one_and_repeatable() -> None:
    rng = random.Random(0)
    problems = [answers("".join(rng.choice("1123") for _ in range(64))) for _ in range(20)]
    sampled = accuracy_curve(problems, lambda chosen: pass_at_k(chosen, len(chosen)), "pass")
    assert sampled == accuracy_curve(problems, lambda chosen: pass_at_k(chosen, len(chosen)), "pass")
    for point in sampled:
        exact = float(np.mean(per_problem_values(problems, lambda samples, k=point.n: pass_at_k(samples, k))))  # type: ignore[misc]
        assert point.value == pytest.approx(exact, abs=0.02)


def test_paired_bootstrap_finds_the_difference_and_its_standard_error() -> None:
    rng = np.random.default_rng(1)
    difficulty = rng.random(300)
    a, b = difficulty + rng.normal(0.05, 0.1, 300), difficulty
    result = paired_bootstrap(a, b)
    assert result == paired_bootstrap(a, b)
    assert result.low < result.value < result.high
    assert (result.low, result.high) == pytest.approx(
        (result.value - 1.96 * np.std(a - b) / 300**0.5, result.value + 1.96 * np.std(a - b) / 300**0.5), abs=0.002
    )
    assert paired_bootstrap(a, a) == PairedDifference(0.0, 0.0, 0.0, 300)
    with pytest.raises(ValueError, match="same problems, got 2 and 3"):
        paired_bootstrap(np.zeros(2), np.zeros(3))
