"""What is left of a distribution once a rejected guess has told where it is not needed.

Shapes: V vocabulary, K ids a drafter drew from.
"""

from __future__ import annotations

import numpy as np

from decoding.speculation.acceptance.uniform_stream import Vector


def normalised(weights: Vector, *, otherwise: Vector) -> Vector:
    """Weights over their sum, or `otherwise` where nothing is left but rounding."""
    total = weights.sum()
    return weights / total if total > 0 else otherwise


def excess(p_V: Vector, ids_K: Vector, q_K: Vector) -> Vector:
    """(p - q)+, not normalised."""
    rest_V = p_V.copy()
    rest_V[ids_K] = np.maximum(rest_V[ids_K] - q_K, 0)
    return rest_V


def leftover(p_V: Vector, ids_K: Vector, q_K: Vector) -> Vector:
    """(p - q)+ over its sum: what must still be drawn from p when a draw from q was rejected.

    p itself where that is zero everywhere; such a rejection had probability 0.

    >>> leftover(np.array([0.5, 0.25, 0.25]), np.array([0]), np.array([1.0]))
    array([0. , 0.5, 0.5])
    """
    return normalised(excess(p_V, ids_K, q_K), otherwise=p_V)


def without(q_K: Vector, at: int) -> Vector:
    """q given that it is not its id number `at`: what the next draw without replacement came from.

    >>> without(np.array([0.5, 0.25, 0.25]), 0)
    array([0. , 0.5, 0.5])
    """
    rest_K = q_K.copy()
    rest_K[at] = 0
    return normalised(rest_K, otherwise=rest_K)
