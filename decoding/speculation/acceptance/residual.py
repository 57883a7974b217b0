"""Residual distributions after a rejected draft token, `norm(max(p - q, 0))` (Leviathan et al., arXiv 2211.17192).

Shapes: V vocabulary, K ids that a drafter drew from.
"""

from __future__ import annotations

import numpy as np

from decoding.speculation.acceptance.uniform_stream import Vector


def normalize_weights(weights: Vector, *, otherwise: Vector) -> Vector:
    """Returns weights over their sum, or `otherwise` where that sum is 0 up to rounding."""
    total = weights.sum()
    # No tolerance: with a threshold a small but possible residual would become `otherwise`.
    return weights / total if total > 0 else otherwise


def positive_part(p_V: Vector, ids_K: Vector, q_K: Vector) -> Vector:
    """Returns (p - q)+, not normalised."""
    residual_V = p_V.copy()  # the caller's p is still needed, as w p or for the next node
    residual_V[ids_K] = np.maximum(residual_V[ids_K] - q_K, 0)
    return residual_V


def residual_distribution(p_V: Vector, ids_K: Vector, q_K: Vector) -> Vector:
    """Returns (p - q)+ over its sum: the distribution to sample from after a draw from q was rejected.

    Where that is zero everywhere, returns p: such a rejection had probability 0.

    >>> residual_distribution(np.array([0.5, 0.25, 0.25]), np.array([0]), np.array([1.0]))
    array([0. , 0.5, 0.5])
    """
    return normalize_weights(positive_part(p_V, ids_K, q_K), otherwise=p_V)


def exclude_token(q_K: Vector, index: int) -> Vector:
    """Returns q without its id number `index`: the distribution of the next draw without replacement.

    >>> exclude_token(np.array([0.5, 0.25, 0.25]), 0)
    array([0. , 0.5, 0.5])
    """
    remaining_K = q_K.copy()  # q belongs to the draft's record
    remaining_K[index] = 0
    return normalize_weights(remaining_K, otherwise=remaining_K)
