"""Multiplies rows of float32 by weights of bfloat16 in tiles (see `tile_kernels`)."""

from __future__ import annotations

from decoding.compiled import compiled_in_place
from decoding.model.panels import Floats, Panels
from decoding.tile_kernels import (
    EXACT,
    TILE,
    TILE_DEPTH,
    begin_tiles,
    end_tiles,
    multiply_tiles,
    round_numbers,
    split_numbers,
)
from decoding.vector_kernels import PANEL

_DEPTH = 1024
"""Numbers of a row that are multiplied before those that follow: the pieces of 64 rows (400 KB) stay in the cache."""


@compiled_in_place
def count_tile_rows(num_rows: int) -> int:
    """Returns the rows of all tiles for `num_rows` rows, those that fill up the last one included."""
    num_tiles, tile_rows = _count_tiles(num_rows)
    return num_tiles * tile_rows


@compiled_in_place
def _count_tiles(num_rows: int) -> tuple[int, int]:
    """Returns the number of tiles and the rows of each: as few as possible, since each takes a cycle more."""
    num_tiles = (num_rows + TILE - 1) // TILE
    return num_tiles, (num_rows + num_tiles - 1) // max(num_tiles, 1)


@compiled_in_place
def size_pieces(num_rows: int, num_pieces: int, depth: int) -> int:
    """Returns the numbers of bfloat16 that `multiply_in_tiles` has room for."""
    num_tiles, _ = _count_tiles(num_rows)
    return num_tiles * min(depth, _DEPTH) * num_pieces * TILE


@compiled_in_place
def multiply_in_tiles(
    x: Floats, x_at: int, x_stride: int, num_rows: int, num_pieces: int, w: Panels, w_at: int, depth: int, columns: int,
    start: Floats, start_at: int, start_stride: int, y: Floats, y_at: int, y_stride: int, pieces: Panels,
) -> None:  # fmt: skip
    """Sets `y = start + x @ w` for all rows; `start` may be `y`. `depth` is a multiple of 32.

    num_pieces  `EXACT`, or `ROUNDED`: the rows are rounded to bfloat16
    pieces      room for the rows in bfloat16, as `size_pieces` says; begins with a line of the cache

    The last tile is filled up: `y` has `count_tile_rows(num_rows)` rows, and `start` too unless its stride is 0.
    """
    if num_rows == 0:
        return
    num_tiles, tile_rows = _count_tiles(num_rows)
    # the rows that fill up the last tile have any numbers
    begin_tiles(w, tile_rows)
    for begin in range(0, depth, _DEPTH):
        length = min(_DEPTH, depth - begin)
        tile_size = length * num_pieces * TILE
        for tile in range(num_tiles):
            first = tile * tile_rows
            for d in range(0, length, TILE_DEPTH):
                # all rows of a tile before the next one: written row by row, each line is fetched by itself
                at = tile * tile_size + d * num_pieces * TILE
                for row in range(first, min(first + tile_rows, num_rows)):
                    number, line = x_at + row * x_stride + begin + d, at + (row - first) * TILE_DEPTH
                    if num_pieces == EXACT:
                        split_numbers(x, number, pieces, line)
                    else:
                        round_numbers(x, number, pieces, line)
        before, before_at, before_stride = (start, start_at, start_stride) if begin == 0 else (y, y_at, y_stride)
        for column in range(0, columns, PANEL):
            panel_at = w_at + column * depth + begin * PANEL
            for tile in range(num_tiles):
                row = tile * tile_rows
                multiply_tiles(
                    num_pieces, pieces, tile * tile_size, length, w, panel_at,
                    before, before_at + row * before_stride + column, before_stride,
                    y, y_at + row * y_stride + column, y_stride,
                )  # fmt: skip
    end_tiles(w)
