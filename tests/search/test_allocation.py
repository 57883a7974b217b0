"""Allocation of continuations by softmax and to the best branches."""

from __future__ import annotations

import random
from itertools import pairwise

from search.allocation import allocate_by_softmax, allocate_to_best


class TestAllocation:
    def test_softmax_allocation_sums_to_the_width_with_less_than_one_rounding_error(self) -> None:
        rng = random.Random(0)
        for _ in range(500):
            scores = [rng.choice([rng.random(), 0.5]) for _ in range(rng.randint(1, 20))]
            width, temperature = rng.randint(0, 64), rng.choice([1e-3, 0.1, 0.2, 5.0])
            widths = allocate_by_softmax(scores, width, temperature)
            assert sum(widths) == width
            ordered = sorted(zip(scores, widths, strict=True))
            assert all(b - a >= -1 for (_, a), (_, b) in pairwise(ordered))
            best = allocate_to_best(scores, width, num_kept=rng.randint(1, 8))
            assert sum(best) == width

    def test_temperature_sets_how_greedy_the_allocation_is(self) -> None:
        assert allocate_by_softmax([0.9, 0.8, 0.1], 9, temperature=0.001) == [9, 0, 0]
        assert allocate_by_softmax([0.9, 0.8, 0.1], 9, temperature=1e6) == [3, 3, 3]
        assert allocate_by_softmax([0.0, 0.0], 3, temperature=0.2) == [2, 1]
        assert allocate_by_softmax([], 3, temperature=0.2) == []

    def test_allocation_of_distant_scores_does_not_overflow(self) -> None:
        assert allocate_by_softmax([1.0, 0.0], 5, temperature=1e-5) == [5, 0]

    def test_best_branches_share_the_width_evenly(self) -> None:
        assert allocate_to_best([0.1, 0.9, 0.5], 5, num_kept=2) == [0, 3, 2]
        assert allocate_to_best([0.5, 0.5, 0.5], 4, num_kept=2) == [2, 2, 0]
        assert allocate_to_best([0.5], 4, num_kept=9) == [4]
