"""The largest logits of a row, found in one pass."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.top_logits import find_largest


@pytest.mark.parametrize("seed", range(40))
def test_largest_are_the_first_of_a_stable_sort(seed: int) -> None:
    """Also among equals, and where most ids are impossible."""
    rng = np.random.default_rng(seed)
    rows, vocab = rng.integers(1, 6), rng.integers(1, 200)
    k = int(rng.integers(1, vocab + 1))
    logits = rng.standard_normal((rows, vocab), dtype=np.float32)
    if seed % 2:
        logits = np.round(logits)
    logits[rng.random(logits.shape) < (0.9 if seed % 4 == 3 else 0.0)] = -np.inf
    ids, largest = np.empty((rows, k), dtype=np.int64), np.empty((rows, k), dtype=np.float32)
    find_largest(logits, ids, largest)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(largest, np.take_along_axis(logits, expected, axis=1))
