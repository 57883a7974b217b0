"""Floors of the levels of drafts: what is below them cannot be among the nodes that are kept."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.speculation.drafters.tree_levels import raise_floors_to_rate
from decoding.speculation.interfaces import CostEstimate


@pytest.mark.parametrize("seed", range(20))
def test_nodes_below_the_rates_floor_are_never_kept(seed: int) -> None:
    rng = np.random.default_rng(seed)
    branches, count = int(rng.integers(1, 5)), int(rng.integers(1, 60))
    probability_N = rng.random(count).astype(np.float32) ** rng.integers(1, 4)
    branch_N = rng.integers(0, branches, count)
    steps = rng.random(count + 3) + (0.2 if seed % 3 else 0.0)
    seconds_N = np.cumsum(np.concatenate([[3 * rng.random() + 1], 0.2 * steps]))
    estimate = CostEstimate(seconds_N, tuple(range(1, len(seconds_N))))
    begun = int(rng.integers(1, count + 1))  # nodes of the levels until now
    floor_B = np.zeros(branches, dtype=np.float32)
    raise_floors_to_rate(branch_N[:begun], probability_N[:begun], seconds_N, estimate.least_seconds, floor_B)
    falling_N = np.sort(probability_N)[::-1]
    num_kept = estimate.count_worthwhile(falling_N, branches)
    assert not num_kept or falling_N[num_kept - 1] > floor_B.max()


def test_where_a_node_may_take_no_time_no_floor_is_raised() -> None:
    floor_B = np.full(2, 0.25, dtype=np.float32)
    raise_floors_to_rate(np.zeros(1, np.int64), np.ones(1, np.float32), np.array([1.0, 1.0]), 0.0, floor_B)
    assert floor_B.tolist() == [0.25, 0.25]
