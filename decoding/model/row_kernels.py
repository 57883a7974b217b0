"""Norms and rotates the rows of a compiled decoder's layers, one by one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from decoding.compiled import compiled_in_place
from decoding.model.panels import Floats
from decoding.vector_emitter import LANES
from decoding.vector_kernels import rotate_pairs, scale_numbers, sum_squares

if TYPE_CHECKING:
    from decoding.model.compiled_layers import StackShape


@compiled_in_place
def copy_row(x: Floats, x_at: int, y: Floats, y_at: int, width: int) -> None:
    # element by element: Numba compiles the assignment of a slice twenty times as long
    for i in range(width):
        y[y_at + i] = x[x_at + i]


@compiled_in_place
def normalise(
    x: Floats, x_at: int, weights: Floats, norm_at: int, y: Floats, y_at: int, width: int, size: int, eps: float
) -> None:
    """Sets `y` to the RMS norm of `size` numbers in `width`."""
    factor = np.float32(1.0) / np.float32(math.sqrt(sum_squares(x, x_at, width) / np.float32(size) + np.float32(eps)))
    scale_numbers(x, x_at, factor, weights, norm_at, y, y_at, width)


@compiled_in_place
def _rotate(x: Floats, x_at: int, size: int, cos_sin: Floats, position: int, factor: float) -> None:
    """Rotates the `size` numbers of a head in place, and multiplies them by `factor`."""
    half = size // 2
    scale = np.float32(factor)
    cos = position * 2 * size
    sin = cos + size
    if half % LANES == 0:
        rotate_pairs(x, x_at, half, cos_sin, cos, sin, scale)
        return
    for i in range(half):
        a, b = x[x_at + i], x[x_at + half + i]
        x[x_at + i] = (a * cos_sin[cos + i] + b * cos_sin[sin + i]) * scale
        x[x_at + half + i] = (b * cos_sin[cos + half + i] + a * cos_sin[sin + half + i]) * scale


@compiled_in_place
def rotate_heads(
    shape: StackShape, begin: Any, vectors: Floats, x: Floats, row_at: int, cos_sin: Floats, position: int
) -> None:
    """Norms the queries and keys of a row, where the layer has such norms, and rotates them in place."""
    for head in range(shape.num_heads + shape.num_kv_heads):
        head_at, is_query = row_at + head * shape.head, head < shape.num_heads
        norm = begin.q_norm if is_query else begin.k_norm
        if norm >= 0:
            normalise(x, head_at, vectors, norm, x, head_at, shape.head, shape.head_size, shape.eps)
        _rotate(x, head_at, shape.head_size, cos_sin, position, shape.scale if is_query else 1.0)
