"""Multiplies rows of float32 by weights of bfloat16 in tiles (see `tile_kernels`)."""

from __future__ import annotations

import numpy as np

from decoding.compiled import compiled
from decoding.model.weight_panels import Floats, Panels
from decoding.tile_kernels import PIECES, TILE, add_pieces, begin_tiles, end_tiles, multiply_tiles, split_numbers
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
    num_tiles = (PIECES * num_rows + TILE - 1) // TILE
    # a single tile of rows is multiplied by two panels at a time
    most = 2 if num_tiles == 1 else 1
    longest, widest = min(depth, _DEPTH), most * PANEL
    # the rows that fill up the last tile have any numbers, and their sums are not read
    pieces = np.empty(num_tiles * TILE * longest + _LINE_SHORTS, dtype=w.dtype)
    pieces = pieces[-(pieces.ctypes.data // 2) % _LINE_SHORTS :]
    sums = np.empty(num_tiles * TILE * widest + _LINE_FLOATS, dtype=np.float32)
    sums = sums[-(sums.ctypes.data // 4) % _LINE_FLOATS :]
    begin_tiles(w)
    for begin in range(0, depth, _DEPTH):
        length = min(_DEPTH, depth - begin)
        for row in range(num_rows):
            split_numbers(x, x_at + row * x_stride + begin, length, pieces, row * PIECES * length)
        for column in range(0, columns, widest):
            panels = min(most, (columns - column) // PANEL)
            width = panels * PANEL
            for tile in range(0, num_tiles, 2):
                multiply_tiles(
                    min(2, num_tiles - tile), panels, pieces, tile * TILE * length, length,
                    w, w_at + column * depth + begin * PANEL, PANEL * depth, sums, tile * TILE * width, width,
                )  # fmt: skip
            for row in range(num_rows):
                before, before_at = (start, start_at + row * start_stride) if begin == 0 else (y, y_at + row * y_stride)
                add_pieces(
                    sums, row * PIECES * width, width, before, before_at + column, y, y_at + row * y_stride + column
                )
    end_tiles(w)
