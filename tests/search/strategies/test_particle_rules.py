"""Formulas of particle methods against their definitions: odds, effective sample size, systematic resampling."""

from __future__ import annotations

import math
import random
import statistics
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.strategies.particle_rules import (
    effective_sample_size,
    log_weights,
    normalise_weights,
    resample_systematically,
)

WEIGHTS = st.lists(st.one_of(st.sampled_from([0.0, 1.0, 1.0, 0.5, 1e-300]), st.floats(0, 1)), min_size=1, max_size=20)
OFFSETS = st.floats(0, 1, exclude_max=True)
ROUNDING = 1e-9


def count_points(weights: list[Fraction], count: int, offset: Fraction) -> list[int]:
    """Copies by the definition: the particle in whose part of [0, 1) each of `count` equally spaced points lies."""
    copies, total = [0] * len(weights), sum(weights)
    for i in range(count):
        point, j = (i + offset) / count * total, 0
        while point >= weights[j]:
            point -= weights[j]
            j += 1
        copies[j] += 1
    return copies


class TestSystematicResampling:
    @given(WEIGHTS, st.integers(0, 64), OFFSETS)
    def test_copies_are_less_than_one_from_their_share_and_add_up(
        self, weights: list[float], count: int, offset: float
    ) -> None:
        if not any(weights):
            weights[0] = 1.0
        total = math.fsum(weights)
        shares = [weight / total for weight in weights]
        copies = resample_systematically(shares, count, offset)
        assert sum(copies) == count
        for share, num_copies in zip(shares, copies, strict=True):
            assert abs(num_copies - count * share) < 1 + ROUNDING
            assert num_copies == 0 or share > 0

    @pytest.mark.parametrize("seed", range(300))
    def test_copies_are_those_of_equally_spaced_points(self, seed: int) -> None:
        rng = random.Random(seed)
        weights = [Fraction(rng.choice([0, 1, 1, 2, rng.randrange(1000)])) for _ in range(rng.randint(1, 12))]
        weights[rng.randrange(len(weights))] += 1
        offset, count = rng.random(), rng.randint(1, 40)
        shares = [float(weight / sum(weights)) for weight in weights]
        assert resample_systematically(shares, count, offset) == count_points(weights, count, Fraction(offset))

    @given(WEIGHTS.filter(any), st.integers(1, 32))
    def test_mean_over_uniform_offsets_is_the_share(self, weights: list[float], count: int) -> None:
        total, grid = math.fsum(weights), 400
        draws = [resample_systematically(weights, count, (i + 0.5) / grid) for i in range(grid)]
        for weight, copies in zip(weights, zip(*draws, strict=True), strict=True):
            assert statistics.fmean(copies) == pytest.approx(count * weight / total, abs=2 / grid)

    @given(st.integers(1, 50), st.floats(0.001, 0.999))
    def test_equal_particles_have_one_copy_each(self, number: int, offset: float) -> None:
        assert resample_systematically([1 / number] * number, number, offset) == [1] * number

    def test_single_particle_has_all_copies(self) -> None:
        assert resample_systematically([1.0], 7, 0.99) == [7]
        assert resample_systematically([0.0, 1.0, 0.0], 7, 0.0) == [0, 7, 0]
        for count in range(1, 300):  # the largest offset below 1
            assert resample_systematically([1.0], count, math.nextafter(1, 0)) == [count]


class TestWeights:
    @given(st.lists(st.floats(1e-6, 1 - 1e-6), min_size=1, max_size=12), st.floats(0.1, 10))
    def test_shares_are_the_odds_to_the_power_of_the_inverse_temperature(
        self, scores: list[float], temperature: float
    ) -> None:
        odds = [(score / (1 - score)) ** (1 / temperature) for score in scores]
        shares = normalise_weights(log_weights(scores, "odds"), temperature)
        assert shares == pytest.approx([each / sum(odds) for each in odds], abs=1e-6)
        plain = normalise_weights(log_weights(scores, "likelihood"), 1.0)
        assert plain == pytest.approx([score / sum(scores) for score in scores])

    @pytest.mark.parametrize("weights", ["odds", "likelihood"])
    @given(st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 1e-300, 0.3, 1.0, 7.0, math.inf, None]), min_size=1))
    def test_every_score_has_a_finite_weight_and_better_ones_no_smaller_one(
        self, weights: str, scores: list[float | None]
    ) -> None:
        logs = log_weights(scores, weights)
        assert all(map(math.isfinite, logs))
        known = sorted((score, log) for score, log in zip(scores, logs, strict=True) if score is not None)
        assert [log for _, log in known] == sorted(log for _, log in known)
        for temperature in (5e-324, 1e-3, 1.0, 1e6):
            shares = normalise_weights(logs, temperature)
            assert math.fsum(shares) == pytest.approx(1)
            assert 1 - ROUNDING <= effective_sample_size(shares) <= len(shares) + ROUNDING

    def test_path_without_a_score_has_the_median_weight(self) -> None:
        for seed in range(100):
            scores = [random.Random(seed * 100 + i).random() for i in range(seed % 7 + 1)]
            known = [math.log(score / (1 - score)) for score in scores]
            *logs, missing = log_weights([*scores, None], "odds")
            assert logs == pytest.approx(known)
            assert missing == pytest.approx(statistics.median(known))
        assert log_weights([None, None], "odds") == [0.0, 0.0]


@given(WEIGHTS.filter(any))
def test_effective_sample_size_is_the_squared_sum_over_the_sum_of_squares(weights: list[float]) -> None:
    shares = [weight / math.fsum(weights) for weight in weights]
    exact = [Fraction(weight) for weight in weights]
    assert effective_sample_size(shares) == pytest.approx(float(sum(exact) ** 2 / sum(w * w for w in exact)))
    assert effective_sample_size([0.25] * 4) == 4
    assert effective_sample_size([0.0, 1.0]) == 1
