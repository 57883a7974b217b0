"""Groups steps with the same meaning: average-linkage clusters of their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from decoding.core import Vector
from search.expand import Expander
from search.strategy import StepEmbedder

_BLOCK_ROWS = 128  # of a product of all pairs
_FEW_PRODUCTS = 1 << 16  # for which BLAS starts no threads


async def cluster_steps(expander: Expander, nodes: Sequence[int], embedder: StepEmbedder) -> list[int]:
    """Clusters nodes by the meaning of their steps; numbers the clusters from 0 in order of appearance."""
    if len(nodes) < 2:
        return [0] * len(nodes)
    steps = [expander.tree.nodes[node].step for node in nodes]
    vectors = await embedder.embed(steps, [expander.hidden_states.get(node) for node in nodes])
    return cluster_vectors(vectors, embedder.distance_threshold)


def cluster_vectors(vectors: Vector, distance_threshold: float) -> list[int]:
    """Clusters vectors `[n, e]` by average linkage of cosine distances; a zero vector is similar to zero vectors only.

    >>> cluster_vectors(np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]], dtype=np.float32), distance_threshold=0.1)
    [0, 1, 0]
    """
    from scipy.cluster.hierarchy import linkage

    if len(vectors) < 2:
        return [0] * len(vectors)
    tree = linkage(cosine_distances(vectors), method="average")
    return cut_dendrogram(tree[:, :3].tolist(), distance_threshold)


def cut_dendrogram(merges: Sequence[Sequence[float]], distance_threshold: float) -> list[int]:
    """Clusters leaves whose merges are all within the threshold; numbers the clusters in order of appearance.

    `merges` are rows of `scipy.cluster.hierarchy.linkage`: two clusters and their distance; that of row i has the
    number `leaves + i`. SciPy's `fcluster` cuts in the same way, in as long as 300 leaves take here.

    >>> cut_dendrogram([[0, 2, 0.1], [1, 3, 0.8]], 0.5)
    [0, 1, 0]
    """
    num_leaves = len(merges) + 1
    highest = [0.0] * num_leaves  # per cluster, of the merges in it: rounding may put a higher one below a lower one
    for one, other, distance in merges:
        highest.append(max(distance, highest[int(one)], highest[int(other)]))
    top = list(range(len(highest)))  # per cluster, the largest one around it that is within the threshold
    for cluster in range(len(highest) - 1, num_leaves - 1, -1):
        if highest[cluster] <= distance_threshold:
            one, other, _ = merges[cluster - num_leaves]
            top[int(one)] = top[int(other)] = top[cluster]
    numbers: dict[int, int] = {}
    return [numbers.setdefault(cluster, len(numbers)) for cluster in top[:num_leaves]]


def count_extra(width: int, members: int, share: float) -> int:
    """Returns the further continuations of a merged branch: `share` of its own ones for each member beyond the first,
    at most as many again, rounded down (FETCH, arXiv 2502.11183, and its release).

    >>> [count_extra(4, members, 0.5) for members in (1, 2, 3, 9)]
    [0, 2, 4, 4]
    """
    return int(width * min(1.0, share * (members - 1)))


@cache
def _find_blas() -> ThreadpoolController:
    # cached: it searches all libraries that the process has loaded
    return ThreadpoolController().select(user_api="blas")


def cosine_distances(vectors: Vector) -> npt.NDArray[np.float64]:
    """Cosine distances of all pairs, `[n * (n - 1) / 2]` in SciPy's condensed order, in [0, 2]."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    is_zero = lengths == 0
    unit = np.asarray(vectors, dtype=np.float64) / np.where(is_zero, 1.0, lengths)
    if is_zero.any():
        unit = np.hstack([unit, is_zero])  # zero vectors have a direction of their own
    n = len(unit)
    similarities = np.empty(n * (n - 1) // 2)
    end = 0
    # In one thread: the others would wait for a next product in a loop, on the cores that the models need. In blocks of
    # rows: the whole matrix is twice as large as its half that is needed, and none of it stays in a cache.
    with nullcontext() if n * unit.size < _FEW_PRODUCTS else _find_blas().limit(limits=1):
        for first in range(0, n, _BLOCK_ROWS):
            for row, product in enumerate(unit[first : first + _BLOCK_ROWS] @ unit[first:].T, 1):
                begin, end = end, end + len(product) - row
                similarities[begin:end] = product[row:]
    # Rounding can make 1 - cos of equal vectors slightly negative, which `linkage` rejects.
    distances = np.subtract(1.0, similarities, out=similarities)
    return np.minimum(np.maximum(distances, 0.0, out=distances), 2.0, out=distances)
