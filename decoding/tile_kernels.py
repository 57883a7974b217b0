"""Emits matrix products in tiles of bfloat16 (Intel's AMX) as LLVM code, for float32 rows and bfloat16 weights.

A tile register holds 16 lines of 64 bytes. One instruction multiplies a tile of 16 rows by 32 numbers of depth with a
tile of 32 numbers of depth by 16 columns, and adds the products to a tile of 16 by 16 float32. It takes 16 cycles; a
core without it needs 256 for as much, with AVX-512.

A row of float32 is the sum of three rows of bfloat16, exactly: each has the next 8 bits of every number. The three
are multiplied one after the other, and added to the same sums. A model in bfloat16 has its rows rounded instead, to
one each: a third of the instructions. Products are exact and sums are float32, in an order that depends on the depth
alone: a row's result has the same bits alone and among others. Up to 16 rows take as long as one while the weights are
on their way from memory.

The weights' type of number says that they are laid out in tiles, int16 on a CPU that has some. For other weights these
functions emit nothing: code that may call them is compiled for a CPU without tiles, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from decoding.cpu_features import has_pair_products
from decoding.vector_emitter import LANES, VectorEmitter, llvm_function

TILE = 16
"""Rows of a tile of sums, and its columns."""

TILE_DEPTH = 32
"""Numbers of bfloat16 in a line of a tile of rows."""

EXACT = 3
"""Pieces of a row: numbers of bfloat16 whose sum is a number of float32."""

ROUNDED = 1
"""Pieces of a row: the nearest number of bfloat16."""

TILE_NUMBERS = TILE_DEPTH * TILE
"""Numbers of bfloat16 in a tile."""

_SUMS, _ROWS, _COLUMNS = (0, 1), (2, 3, 4), (5, 6)
"""The registers of the sums of a panel's halves, of the pieces of rows, and of the weights of the halves."""

_BYTE, _SHORT, _INT = ir.IntType(8), ir.IntType(16), ir.IntType(32)


def has_tiles_type(weights: Any) -> bool:
    return bool(weights.dtype == types.int16) and not has_pair_products()


@llvm_function
def begin_tiles(typing: Any, w: Any, num_rows: Any) -> Any:
    """Sets up the tile registers of the calling thread, for products of `num_rows` rows, 1 to 16, with `w`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if has_tiles_type(w):
            e = VectorEmitter(context, builder, sig)
            sizes = np.zeros(64, dtype=np.uint8)
            sizes[0] = 1  # the only palette
            sizes[16:32].view(np.uint16)[:] = 2 * TILE_DEPTH  # bytes of a line
            sizes[48:56] = TILE  # lines
            constant = ir.Constant(ir.ArrayType(_BYTE, 64), bytearray(sizes.tobytes()))
            memory = cgutils.alloca_once_value(builder, constant)  # type: ignore[no-untyped-call]
            data = builder.bitcast(memory, _BYTE.as_pointer())
            for register in (*_SUMS, *_ROWS):
                lines = builder.bitcast(e.address(data, e.integer(48 + register), _BYTE), _BYTE.as_pointer())
                builder.store(builder.trunc(args[1], _BYTE), lines)
            e.call_by_name("llvm.x86.ldtilecfg", ir.VoidType(), builder.bitcast(memory, ir.PointerType()))
        return context.get_dummy_value()

    return types.void(w, types.int64), emit


@llvm_function
def end_tiles(typing: Any, w: Any) -> Any:
    """Gives the tile registers back: switching between threads is faster without them."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if has_tiles_type(w):
            VectorEmitter(context, builder, sig).call_by_name("llvm.x86.tilerelease", ir.VoidType())
        return context.get_dummy_value()

    return types.void(w), emit


@llvm_function
def split_numbers(typing: Any, x: Any, x_at: Any, pieces: Any, pieces_at: Any) -> Any:
    """Splits 32 numbers into three of bfloat16 each, whose sum they are: a line in each of three tiles that follow."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        x_data, pieces_data, (_, x_at, _, pieces_at) = e.data(0, args), e.data(2, args), e.hide(args)
        ints = ir.VectorType(_INT, LANES)
        for half in range(0, TILE_DEPTH, LANES):
            rest = e.load(x_data, builder.add(x_at, e.integer(half)))
            for piece in range(EXACT):
                bits = builder.bitcast(rest, ints)
                at = builder.add(pieces_at, e.integer(piece * TILE_NUMBERS + half))
                e.store_high_halves(bits, pieces_data, at)
                number = builder.bitcast(builder.and_(bits, ir.Constant(ints, [0xFFFF0000] * LANES)), rest.type)
                rest = builder.fsub(rest, number)
        return context.get_dummy_value()

    return types.void(x, types.int64, pieces, types.int64), emit


@llvm_function
def round_numbers(typing: Any, x: Any, x_at: Any, pieces: Any, pieces_at: Any) -> Any:
    """Rounds 32 numbers to the nearest ones of bfloat16: a line of a tile."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        x_data, pieces_data, (_, x_at, _, pieces_at) = e.data(0, args), e.data(2, args), e.hide(args)
        for begin in range(0, TILE_DEPTH, LANES):
            numbers = e.load(x_data, builder.add(x_at, e.integer(begin)))
            e.store_numbers(numbers, pieces_data, builder.add(pieces_at, e.integer(begin)), are_halves=True)
        return context.get_dummy_value()

    return types.void(x, types.int64, pieces, types.int64), emit


@llvm_function
def multiply_tiles(
    typing: Any, num_pieces: Any, pieces: Any, pieces_at: Any, depth: Any, w: Any, w_at: Any,
    start: Any, start_at: Any, start_stride: Any, y: Any, y_at: Any, y_stride: Any,
) -> Any:  # fmt: skip
    """Sets `y = start + pieces @ w`, `[rows, 32]`, for one tile of rows and one panel; `start` may be `y`.

    num_pieces  `EXACT` or `ROUNDED`
    pieces      `[depth / 32, num_pieces, 16, 32]`: the pieces of the rows after one another
    """
    long = types.int64
    signature = types.void(long, pieces, long, long, w, long, start, long, long, y, long, long)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        pieces_data, w_data, start_data, y_data = (e.data(i, args) for i in (1, 4, 6, 9))
        (num_pieces, _, pieces_at, depth, _, w_at, _, start_at, start_stride, _, y_at, y_stride) = e.hide(args)

        def call(name: str, register: int, *values: ir.Value) -> None:
            e.call_by_name(f"llvm.x86.{name}", ir.VoidType(), ir.Constant(_BYTE, register), *values)

        def load(register: int, data: ir.Value, at: ir.Value, tile: int) -> None:
            address = e.address(data, builder.add(at, e.integer(tile * TILE_NUMBERS)), _SHORT)
            call("tileloadd64", register, builder.bitcast(address, _BYTE.as_pointer()), e.integer(2 * TILE_DEPTH))

        def move_sums(name: str, data: ir.Value, at: ir.Value, stride: ir.Value) -> None:
            for half, register in enumerate(_SUMS):
                address = e.address(data, builder.add(at, e.integer(half * TILE)))
                call(name, register, builder.bitcast(address, _BYTE.as_pointer()), builder.mul(stride, e.integer(4)))

        def add_products(rows: tuple[int, ...], d: ir.Value) -> None:
            rows_at = builder.add(pieces_at, builder.mul(d, e.integer(len(rows) * TILE)))
            columns_at = builder.add(w_at, builder.mul(d, e.integer(2 * TILE)))
            for piece, register in enumerate(rows):
                load(register, pieces_data, rows_at, piece)
            for half, register in enumerate(_COLUMNS):
                load(register, w_data, columns_at, half)
                for row in rows:
                    call("tdpbf16ps", _SUMS[half], *(ir.Constant(_BYTE, factor) for factor in (row, register)))

        if has_tiles_type(w):
            move_sums("tileloadd64", start_data, start_at, start_stride)
            is_exact = builder.icmp_signed("==", num_pieces, e.integer(EXACT))
            with builder.if_else(is_exact) as branches:
                for branch, rows in zip(branches, (_ROWS, _ROWS[:ROUNDED]), strict=True):
                    with branch:
                        e.repeat(depth, TILE_DEPTH, partial(add_products, rows))
            move_sums("tilestored64", y_data, y_at, y_stride)
        return context.get_dummy_value()

    return signature, emit


@llvm_function
def is_tiled(typing: Any, w: Any) -> Any:
    """Returns whether these weights are laid out in tiles."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(ir.IntType(1), int(has_tiles_type(w)))

    return types.boolean(w), emit
