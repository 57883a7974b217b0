"""Emits matrix products in tiles of bfloat16 (Intel's AMX) as LLVM code, for float32 rows and bfloat16 weights.

A tile register holds 16 lines of 64 bytes. One instruction multiplies a tile of 16 rows by 32 numbers of depth with a
tile of 32 numbers of depth by 16 columns, and adds the products to a tile of 16 by 16 float32. It takes 16 cycles; a
core without it needs 256 for as much, with AVX-512.

A row of float32 is the sum of three rows of bfloat16, exactly: each has the next 8 bits of every number. So R rows are
multiplied as 3 R rows, and the three results of a row are added. Products are exact and sums are float32, in an order
that depends on the depth alone: a row's result has the same bits alone and among others.

The weights' type of number says that they are laid out in tiles, int16. For other weights these functions emit nothing:
code that may call them is compiled for a CPU without tiles, too.

Of the 8 registers 4 have sums, and the others what is multiplied: two tiles of rows by two of columns, or one of rows
by four of columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from decoding.vector_emitter import LANES, VectorEmitter, llvm_function

TILE = 16
"""Rows of a tile of sums, and its columns."""

TILE_DEPTH = 32
"""Numbers of bfloat16 in a line of a tile of rows."""

PIECES = 3
"""Numbers of bfloat16 whose sum is a number of float32."""

_WEIGHTS = TILE_DEPTH * TILE  # of a tile
_SUMS, _ROWS, _COLUMNS = 0, 4, 6
"""The first registers of sums, of rows and of columns, with two tiles of rows; with one its other register is free."""

_BYTE, _SHORT, _INT = ir.IntType(8), ir.IntType(16), ir.IntType(32)


def _has_tiles(weights: Any) -> bool:
    return bool(weights.dtype == types.int16)


def _describe_tiles() -> bytes:
    """Returns the sizes of all registers as the instruction wants them: each 16 lines of 64 bytes."""
    description = np.zeros(64, dtype=np.uint8)
    description[0] = 1  # the only palette
    description[16:32].view(np.uint16)[:] = 64
    description[48:56] = TILE
    return description.tobytes()


@llvm_function
def begin_tiles(typing: Any, w: Any) -> Any:
    """Sets up the tile registers of the calling thread, for products with `w`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if _has_tiles(w):
            e = VectorEmitter(context, builder, sig)
            sizes = ir.Constant(ir.ArrayType(_BYTE, 64), bytearray(_describe_tiles()))
            address = cgutils.global_constant(builder, "tile_sizes", sizes)  # type: ignore[no-untyped-call]
            e.call_by_name("llvm.x86.ldtilecfg", ir.VoidType(), builder.bitcast(address, ir.PointerType()))
        return context.get_dummy_value()

    return types.void(w), emit


@llvm_function
def end_tiles(typing: Any, w: Any) -> Any:
    """Gives the tile registers back: switching between threads is faster without them."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if _has_tiles(w):
            VectorEmitter(context, builder, sig).call_by_name("llvm.x86.tilerelease", ir.VoidType())
        return context.get_dummy_value()

    return types.void(w), emit


@llvm_function
def split_numbers(typing: Any, x: Any, x_at: Any, width: Any, pieces: Any, pieces_at: Any) -> Any:
    """Splits `width` numbers into three rows of bfloat16, whose sum they are."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        x_data, pieces_data, (_, x_at, width, _, pieces_at) = e.data(0, args), e.data(3, args), args
        ints, shorts = ir.VectorType(_INT, LANES), ir.VectorType(_SHORT, LANES)

        def split_some(d: ir.Value) -> None:
            rest = e.load(x_data, builder.add(x_at, d))
            at = builder.add(pieces_at, d)
            for _ in range(PIECES):
                bits = builder.bitcast(rest, ints)
                high = builder.trunc(builder.lshr(bits, ir.Constant(ints, [16] * LANES)), shorts)
                pointer = builder.bitcast(e.address(pieces_data, at, _SHORT), shorts.as_pointer())
                builder.store(high, pointer, align=2)
                piece = builder.bitcast(builder.and_(bits, ir.Constant(ints, [0xFFFF0000] * LANES)), rest.type)
                rest = builder.fsub(rest, piece)
                at = builder.add(at, width)

        e.repeat(width, LANES, split_some)
        return context.get_dummy_value()

    return types.void(x, types.int64, types.int64, pieces, types.int64), emit


@llvm_function
def multiply_tiles(
    typing: Any, row_tiles: Any, panels: Any, pieces: Any, pieces_at: Any, depth: Any,
    w: Any, w_at: Any, panel_size: Any, sums: Any, sums_at: Any, sums_stride: Any,
) -> Any:  # fmt: skip
    """Sets `sums = pieces @ w` for one tile of rows and one or two panels, or for two tiles of rows and one panel.

    A panel has 32 columns; the next begins `panel_size` numbers after it. Any `depth` that is a multiple of 32.
    """
    long = types.int64
    signature = types.void(long, long, pieces, long, long, w, long, long, sums, long, long)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        pieces_data, w_data, sums_data = (e.data(i, args) for i in (2, 5, 8))
        (row_tiles, panels, _, pieces_at, depth, _, w_at, panel_size, _, sums_at, sums_stride) = args

        def call(name: str, *values: ir.Value) -> None:
            e.call_by_name(f"llvm.x86.{name}", ir.VoidType(), *values)

        def move(name: str, register: int, address: ir.Value, line_bytes: ir.Value) -> None:
            call(name, ir.Constant(_BYTE, register), builder.bitcast(address, ir.PointerType()), line_bytes)

        def emit_tiles(num_rows: int, num_columns: int) -> None:
            tiles = [(row, column) for column in range(num_columns) for row in range(num_rows)]
            registers = {tile: _SUMS + number for number, tile in enumerate(tiles)}
            for register in registers.values():
                call("tilezero", ir.Constant(_BYTE, register))

            def load_rows(row: int, d: ir.Value) -> None:
                at = builder.add(builder.add(pieces_at, d), builder.mul(depth, e.integer(TILE * row)))
                line_bytes = builder.mul(depth, e.integer(2))
                move("tileloadd64", _ROWS + row, e.address(pieces_data, at, _SHORT), line_bytes)

            def load_columns(column: int, d: ir.Value) -> None:
                at = builder.add(w_at, builder.mul(d, e.integer(2 * TILE)))
                at = builder.add(at, builder.mul(panel_size, e.integer(column // 2)))
                at = builder.add(at, e.integer(column % 2 * _WEIGHTS))
                move("tileloadd64", _COLUMNS + column % 2, e.address(w_data, at, _SHORT), e.integer(64))

            def add_products(d: ir.Value) -> None:
                for row, column in tiles:
                    if row == 0:
                        load_columns(column, d)
                    if column == 0:
                        load_rows(row, d)
                    factors = (registers[row, column], _ROWS + row, _COLUMNS + column % 2)
                    call("tdpbf16ps", *(ir.Constant(_BYTE, register) for register in factors))

            e.repeat(depth, TILE_DEPTH, add_products)
            for (row, column), register in registers.items():
                at = builder.add(sums_at, e.integer(column * TILE))
                at = builder.add(at, builder.mul(sums_stride, e.integer(TILE * row)))
                move("tilestored64", register, e.address(sums_data, at), builder.mul(sums_stride, e.integer(4)))

        for num_rows, num_panels in ((1, 1), (1, 2), (2, 1)) if _has_tiles(w) else ():
            is_this = builder.icmp_signed("==", row_tiles, e.integer(num_rows))
            is_this = builder.and_(is_this, builder.icmp_signed("==", panels, e.integer(num_panels)))
            with builder.if_then(is_this):
                emit_tiles(num_rows, 2 * num_panels)
        return context.get_dummy_value()

    return signature, emit


@llvm_function
def add_pieces(
    typing: Any, sums: Any, sums_at: Any, width: Any, start: Any, start_at: Any, y: Any, y_at: Any
) -> Any:  # fmt: skip
    """Sets `width` numbers: `y = start + ` the sum of three rows of `sums`; `start` may be `y`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        sums_data, start_data, y_data = (e.data(i, args) for i in (0, 3, 5))
        (_, sums_at, width, _, start_at, _, y_at) = args

        def add_some(d: ir.Value) -> None:
            rows_at = [builder.add(sums_at, builder.mul(width, e.integer(piece))) for piece in range(PIECES)]
            high, middle, low = (e.load(sums_data, builder.add(at, d)) for at in rows_at)
            total = builder.fadd(builder.fadd(low, middle), high)
            e.store(builder.fadd(e.load(start_data, builder.add(start_at, d)), total), y_data, builder.add(y_at, d))

        e.repeat(width, LANES, add_some)
        return context.get_dummy_value()

    long = types.int64
    return types.void(sums, long, long, start, long, y, long), emit


@llvm_function
def is_tiled(typing: Any, w: Any) -> Any:
    """Returns whether these weights are laid out in tiles."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(ir.IntType(1), int(_has_tiles(w)))

    return types.boolean(w), emit
