"""Which steps say the same: average-linkage clusters of their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from decoding.core import Vector
from search.expand import Expander
from search.strategy import Embedder


async def same_meaning(run: Expander, nodes: Sequence[int], embedder: Embedder) -> list[int]:
    """A cluster number per node, by the newest step of its path; numbers start at 0, in order of appearance."""
    if len(nodes) < 2:
        return [0] * len(nodes)
    steps = [run.tree.nodes[node].step for node in nodes]
    return cluster(await embedder.embed(steps, [run.hidden.get(node) for node in nodes]), embedder.cut)


def cluster(vectors: Vector, cut: float) -> list[int]:
    """Average linkage over cosine distances, cut at `cut`; a vector of zeros is alike to nothing but zeros.

    >>> cluster(np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]], dtype=np.float32), cut=0.1)
    [0, 1, 0]
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(vectors) < 2:
        return [0] * len(vectors)
    labels = fcluster(linkage(condensed_distances(vectors), method="average"), t=cut, criterion="distance")
    first: dict[int, int] = {}
    return [first.setdefault(int(label), len(first)) for label in labels]


def condensed_distances(vectors: Vector) -> npt.NDArray[np.float64]:
    """Cosine distances of all pairs, `[n * (n - 1) / 2]`, in SciPy's order. Never negative, at most 2."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.asarray(vectors, dtype=np.float64) / np.where(lengths > 0, lengths, 1.0)
    distances = np.clip(1.0 - unit @ unit.T, 0.0, 2.0)
    zero = lengths[:, 0] == 0
    distances[np.ix_(zero, zero)] = 0.0
    return distances[np.triu_indices(len(vectors), k=1)]
