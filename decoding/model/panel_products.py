"""Multiplies rows by weights in panels: all columns, or one thread's share of them."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled_in_place
from decoding.model.panels import Floats, Panels
from decoding.model.tile_products import multiply_in_tiles, size_pieces
from decoding.product_kernels import ROWS, count_together, is_paired, multiply_panels
from decoding.tile_kernels import is_tiled
from decoding.vector_kernels import PANEL, add_numbers, copy_numbers

Ints = npt.NDArray[np.int64]

ZERO = cast(int, np.int64(0))
"""Index 0 as an argument: for a literal Numba compiles the called function once more."""


@compiled_in_place
def multiply(
    x: Floats, x_at: int, x_stride: int, num_rows: int, num_pieces: int, w: Panels, w_at: int, depth: int, columns: int,
    start: Floats, start_at: int, start_stride: int, y: Floats, y_at: int, y_stride: int, rounded: Panels,
) -> None:  # fmt: skip
    """Sets `y = start + x @ w` for all rows; `start` may be `y`. There is room for whole tiles of rows.

    num_pieces  of a row, `EXACT` or `ROUNDED`, for weights in tiles. For those in pairs of bfloat16 it is rounded, with
                others it is multiplied as it is
    rounded     room for the rows in the weights' type of number, as `size_rounded` says; begins with a line of the
                cache
    """
    if is_tiled(w):
        multiply_in_tiles(
            x, x_at, x_stride, num_rows, num_pieces, w, w_at, depth, columns,
            start, start_at, start_stride, y, y_at, y_stride, rounded,
        )  # fmt: skip
    elif is_paired(w):
        for row in range(num_rows):
            copy_numbers(x, x_at + row * x_stride, rounded, row * depth, depth)
        _multiply_in_panels(
            rounded, ZERO, depth, num_rows, w, w_at, depth, columns, start, start_at, start_stride, y, y_at, y_stride
        )  # fmt: skip
    else:
        _multiply_in_panels(
            x, x_at, x_stride, num_rows, w, w_at, depth, columns, start, start_at, start_stride, y, y_at, y_stride
        )  # fmt: skip


@compiled_in_place
def size_rounded(num_rows: int, num_pieces: int, w: Panels, depth: int) -> int:
    """Returns the numbers that `multiply` has room for where it rounds rows to bfloat16."""
    if is_tiled(w):
        return size_pieces(num_rows, num_pieces, depth)
    return num_rows * depth if is_paired(w) else ZERO


@compiled_in_place
def _multiply_in_panels(
    x: Floats | Panels, x_at: int, x_stride: int, num_rows: int, w: Panels, w_at: int, depth: int, columns: int,
    start: Floats, start_at: int, start_stride: int, y: Floats, y_at: int, y_stride: int,
) -> None:  # fmt: skip
    num_panels = columns // PANEL
    # parts as equal as possible: one of a row or two takes nearly as long as one of four
    num_parts = max((num_rows + ROWS - 1) // ROWS, 1)
    smaller, larger_parts = num_rows // num_parts, num_rows % num_parts
    step = count_together(smaller)
    for first in range(0, num_panels, step):
        # these few panels stay in the cache until all rows have read them
        end = min(first + step, num_panels)
        row = 0
        for part in range(num_parts):
            size = smaller + 1 if part < larger_parts else smaller
            most = count_together(size)
            panel = first
            while panel < end:
                together = most if panel + most <= end else 1
                column = panel * PANEL
                multiply_panels(
                    size, together, x, x_at + row * x_stride, x_stride, w, w_at + column * depth, depth,
                    start, start_at + row * start_stride + column, start_stride,
                    y, y_at + row * y_stride + column, y_stride,
                )  # fmt: skip
                panel += together
            row += size


@compiled_in_place
def multiply_share(
    thread: int, num_threads: int, x: Floats, x_stride: int, num_rows: int, num_pieces: int, w: Panels, w_at: int,
    depth: int, columns: int, first: int, end: int, start: Floats, start_stride: int, biases: Floats, bias_at: int,
    y: Floats, rounded: Panels,
) -> None:  # fmt: skip
    """Sets this thread's columns of those from `first` to `end`: `y = start + x @ w + bias`; `start` may be `y`.

    `y` has rows of `columns` numbers, for which `w` has panels and `biases` numbers; no bias where `bias_at` < 0. Rows
    of `x` are `x_stride` apart, of which a product reads `depth` numbers.
    """
    begin, stop = share_columns(thread, num_threads, end - first)
    if begin == stop:  # with few columns a thread may have none
        return
    at = first + begin
    multiply(
        x, ZERO, x_stride, num_rows, num_pieces, w, w_at + at * depth, depth, stop - begin,
        start, at, start_stride, y, at, columns, rounded,
    )  # fmt: skip
    if bias_at >= 0:
        for row in range(num_rows):
            add_numbers(biases, bias_at + at, y, row * columns + at, stop - begin)


@compiled_in_place
def share_columns(thread: int, num_threads: int, columns: int) -> tuple[int, int]:
    """Returns the first column of a thread, and the end of its columns: whole panels, pairs of them while there are."""
    panels = columns // PANEL
    pairs = (panels + 1) // 2
    first, end = thread * pairs // num_threads * 2, (thread + 1) * pairs // num_threads * 2
    return min(first, panels) * PANEL, min(end, panels) * PANEL


@compiled_in_place
def multiply_in_team(
    thread: int, num_threads: int, barrier: Ints, x: Floats, num_rows: int, num_pieces: int, w: Panels, depth: int,
    columns: int, bias: Floats, y: Floats, rounded: Panels,
) -> None:  # fmt: skip
    """Sets this thread's columns of `y = bias + x @ w`; no thread waits for another.

    `y` has room for `count_tile_rows(num_rows)` rows, and `rounded` for those of `multiply` of each thread.
    """
    first, end = share_columns(thread, num_threads, columns)
    if first < end:  # with few columns a thread may have none
        size = len(rounded) // num_threads
        multiply(
            x, ZERO, depth, num_rows, num_pieces, w, first * depth, depth, end - first, bias, first, ZERO,
            y, first, columns, rounded[thread * size : (thread + 1) * size],
        )  # fmt: skip
