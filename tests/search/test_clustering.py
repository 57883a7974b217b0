"""Clusters of steps: thresholds, zero vectors, and distances equal to SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from search.clustering import cluster_vectors, cosine_distances


class TestClusterVectors:
    def test_vectors_of_the_same_direction_share_a_cluster(self) -> None:
        vectors = np.array([[1, 0], [2, 0], [0, 1], [0, 3], [1, 0.01]], dtype=np.float32)
        assert cluster_vectors(vectors, distance_threshold=0.05) == [0, 0, 1, 1, 0]

    def test_a_wide_threshold_gives_one_cluster_and_a_narrow_one_single_steps(self) -> None:
        vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
        assert cluster_vectors(vectors, distance_threshold=3.0) == [0] * 20
        assert cluster_vectors(vectors, distance_threshold=1e-9) == list(range(20))

    def test_single_vectors_and_zero_vectors_are_clustered(self) -> None:
        assert cluster_vectors(np.ones((1, 3), dtype=np.float32), distance_threshold=0.1) == [0]
        assert cluster_vectors(np.array([[0, 0], [1, 0], [0, 0]], dtype=np.float32), distance_threshold=0.1) == [
            0,
            1,
            0,
        ]

    @pytest.mark.parametrize("count", [2, 9, 128, 129, 300])
    def test_cosine_distances_equal_those_of_scipy(self, count: int) -> None:
        """Among them those of rows in several blocks."""
        vectors = np.random.default_rng(1).normal(size=(count, 5)).astype(np.float32)
        assert np.allclose(cosine_distances(vectors), pdist(vectors.astype(np.float64), "cosine"), atol=1e-6)

    def test_zero_vectors_are_orthogonal_to_all_others(self) -> None:
        vectors = np.random.default_rng(2).normal(size=(150, 5)).astype(np.float32)
        zeros = np.array([3, 140])  # in two blocks
        vectors[zeros] = 0.0
        distances = squareform(cosine_distances(vectors))
        assert distances[3, 140] == 0.0
        assert np.all(distances[np.ix_(zeros, np.delete(np.arange(150), zeros))] == 1.0)
