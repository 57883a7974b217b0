"""Multiplies rows of float32 by weights of bfloat16 in tiles (see `tile_kernels`)."""

from __future__ import annotations

import numpy as np

from decoding.compiled import compiled
from decoding.model.weight_panels import Floats, Panels
from decoding.tile_kernels import (
    PIECES,
    TILE,
    TILE_DEPTH,
    add_sums,
    begin_tiles,
    end_tiles,
    multiply_tiles,
    split_numbers,
)
from decoding.vector_kernels import PANEL

_DEPTH = 1024
"""Numbers of a row that are multiplied before those that follow: the pieces of 64 rows (400 KB) stay in the cache."""

_LINE_SHORTS, _LINE_FLOATS = 32, 16  # of a line of the cache


@compiled
def multiply_in_tiles(
    x: Floats, x_at: int, x_stride: int, num_rows: int, w: Panels, w_at: int, depth: int, columns: int,
    start: Floats, start_at: int, start_stride: int, y: Floats, y_at: int, y_stride: int,
) -> None:  # fmt: skip
    """Sets `y = start + x @ w` for all rows; `start` may be `y`. `depth` is a multiple of 32."""
    if num_rows == 0:
        return
    num_tiles = (num_rows + TILE - 1) // TILE
    # tiles of as few rows as possible: each takes a cycle more
    tile_rows = (num_rows + num_tiles - 1) // num_tiles
    longest = min(depth, _DEPTH)
    # the rows that fill up the last tile have any numbers, and their sums are not read
    pieces = np.empty(num_tiles * longest * PIECES * TILE + _LINE_SHORTS, dtype=w.dtype)
    pieces = pieces[-(pieces.ctypes.data // 2) % _LINE_SHORTS :]
    sums = np.empty(num_tiles * tile_rows * PANEL + _LINE_FLOATS, dtype=np.float32)
    sums = sums[-(sums.ctypes.data // 4) % _LINE_FLOATS :]
    begin_tiles(w, tile_rows)
    for begin in range(0, depth, _DEPTH):
        length = min(_DEPTH, depth - begin)
        tile_size = length * PIECES * TILE
        for row in range(num_rows):
            line_at = row // tile_rows * tile_size + row % tile_rows * TILE_DEPTH
            split_numbers(x, x_at + row * x_stride + begin, length, pieces, line_at)
        for column in range(0, columns, PANEL):
            panel_at = w_at + column * depth + begin * PANEL
            for tile in range(num_tiles):
                multiply_tiles(pieces, tile * tile_size, length, w, panel_at, sums, tile * tile_rows * PANEL)
            for row in range(num_rows):
                before, before_at = (start, start_at + row * start_stride) if begin == 0 else (y, y_at + row * y_stride)
                add_sums(sums, row * PANEL, before, before_at + column, y, y_at + row * y_stride + column)
    end_tiles(w)
