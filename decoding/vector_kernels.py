"""Emits what a compiled decoder does with rows of numbers as LLVM code: softmax, norms, rotation, activation.

Numba turns loops over arrays into vector code where it can prove that they do not overlap, which it cannot here. These
functions are called from Numba's functions and say which numbers stay in vectors of 16 float32; LLVM cuts a vector to
the registers of the machine.

Every sum has one order, that of its index, whatever the number of rows that are computed side by side. So a row's
result has the same bits alone and among others.

`product_kernels` and `attention_kernels` are of the same kind.

All arrays are one-dimensional and contiguous; `_at` is the index at which something begins in its array. Widths are
multiples of 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import types

from decoding.cpu_features import has_cpu_feature
from decoding.vector_emitter import LANES, VectorEmitter, llvm_function

PANEL = 2 * LANES
"""Columns of a matrix that are stored, and computed, together."""

HAS_32_REGISTERS = has_cpu_feature("avx512f")


@llvm_function
def exponentiate(typing: Any, scores: Any, scores_at: Any, count: Any) -> Any:
    """Replaces `count` scores by exp(score - largest score) and returns their sum.

    *Mutates* up to 16 numbers after them.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        data, (_, at, count) = e.data(0, args), args
        low = e.vector(-3.0e38)
        whole = builder.and_(count, e.integer(-LANES))
        is_score = e.lanes_below(builder.sub(count, whole))
        tail_at = builder.add(at, whole)
        e.store(builder.select(is_score, e.load(data, tail_at), low), data, tail_at)

        def raise_largest(i: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            return [e.larger(e.load(data, builder.add(at, i)), carried[0])]

        (largest,) = e.loop(count, LANES, [low], raise_largest)
        largest = e.spread_largest(largest)

        def add_exp(i: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            x_at = builder.add(at, i)
            x = e.exp(builder.fsub(e.load(data, x_at), largest))
            # what lies beyond the last score counts nothing
            x = builder.select(e.lanes_below(builder.sub(count, i)), x, e.vector(0.0))
            e.store(x, data, x_at)
            return [builder.fadd(carried[0], x)]

        (total,) = e.loop(count, LANES, [e.vector(0.0)], add_exp)
        return e.sum_lanes(total)

    return types.float32(scores, types.int64, types.int64), emit


@llvm_function
def sum_squares(typing: Any, x: Any, x_at: Any, width: Any) -> Any:
    """Returns the sum of `width` squares."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        data, (_, at, width) = e.data(0, args), args

        def add_squares(i: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            x = e.load(data, builder.add(at, i))
            return [e.multiply_add(x, x, carried[0])]

        return e.sum_lanes(e.loop(width, LANES, [e.vector(0.0)], add_squares)[0])

    return types.float32(x, types.int64, types.int64), emit


@llvm_function
def copy_numbers(typing: Any, x: Any, x_at: Any, y: Any, y_at: Any, width: Any) -> Any:
    """Sets `width` numbers of `y` to those of `x`, rounded where `y` has 16 bits: bfloat16."""
    long, are_halves = types.int64, y.dtype != types.float32

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        x_data, y_data, (_, x_at, _, y_at, width) = e.data(0, args), e.data(2, args), args

        def copy_some(i: ir.Value) -> None:
            e.store_numbers(e.load(x_data, builder.add(x_at, i)), y_data, builder.add(y_at, i), are_halves)

        e.repeat(width, LANES, copy_some)
        return context.get_dummy_value()

    return types.void(x, long, y, long, long), emit


@llvm_function
def add_numbers(typing: Any, x: Any, x_at: Any, y: Any, y_at: Any, width: Any) -> Any:
    """Adds `width` numbers of `x` to those of `y`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        x_data, y_data, (_, x_at, _, y_at, width) = e.data(0, args), e.data(2, args), args

        def add_some(i: ir.Value) -> None:
            total = builder.fadd(e.load(y_data, builder.add(y_at, i)), e.load(x_data, builder.add(x_at, i)))
            e.store(total, y_data, builder.add(y_at, i))

        e.repeat(width, LANES, add_some)
        return context.get_dummy_value()

    long = types.int64
    return types.void(x, long, y, long, long), emit


@llvm_function
def scale_numbers(
    typing: Any, x: Any, x_at: Any, factor: Any, weights: Any, weights_at: Any, y: Any, y_at: Any, width: Any
) -> Any:
    """Sets `y = x * factor * weights`, `width` numbers; `y` may be `x`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        x_data, weights_data, y_data = (e.data(i, args) for i in (0, 3, 5))
        (_, x_at, factor, _, weights_at, _, y_at, width) = args
        factors = e.broadcast(factor)

        def scale_some(i: ir.Value) -> None:
            scaled = builder.fmul(e.load(x_data, builder.add(x_at, i)), factors)
            weight = e.load(weights_data, builder.add(weights_at, i))
            e.store(builder.fmul(scaled, weight), y_data, builder.add(y_at, i))

        e.repeat(width, LANES, scale_some)
        return context.get_dummy_value()

    long = types.int64
    return types.void(x, long, types.float32, weights, long, y, long, long), emit


@llvm_function
def rotate_pairs(
    typing: Any, x: Any, x_at: Any, half: Any, cos_sin: Any, cos_at: Any, sin_at: Any, factor: Any
) -> Any:  # fmt: skip
    """Rotates `2 * half` numbers, the first with the first of the second half and so on, and multiplies by `factor`.

    `half` is a multiple of 16.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        data, table, (_, x_at, half, _, cos_at, sin_at, factor) = e.data(0, args), e.data(3, args), args
        factors, other_at = e.broadcast(factor), builder.add(x_at, half)

        def rotate_some(i: ir.Value) -> None:
            low, high = e.load(data, builder.add(x_at, i)), e.load(data, builder.add(other_at, i))
            for at, number, other, shift in ((x_at, low, high, e.integer(0)), (other_at, high, low, half)):
                place = builder.add(shift, i)
                cos, sin = (e.load(table, builder.add(first, place)) for first in (cos_at, sin_at))
                total = builder.fadd(builder.fmul(number, cos), builder.fmul(other, sin))
                e.store(builder.fmul(total, factors), data, builder.add(at, i))

        e.repeat(half, LANES, rotate_some)
        return context.get_dummy_value()

    long = types.int64
    return types.void(x, long, long, cos_sin, long, long, types.float32), emit


@llvm_function
def gate_values(typing: Any, x: Any, gate_at: Any, up_at: Any, width: Any, out_at: Any) -> Any:
    """Sets `out = silu(gate) * up`, all three in `x` and `width` long."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        data, (_, gate_at, up_at, width, out_at) = e.data(0, args), args

        def gate_some(i: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            gate, up = e.load(data, builder.add(gate_at, i)), e.load(data, builder.add(up_at, i))
            sigmoid = builder.fadd(e.exp(builder.fneg(gate)), e.vector(1.0))
            e.store(builder.fmul(builder.fdiv(gate, sigmoid), up), data, builder.add(out_at, i))
            return []

        e.loop(width, LANES, [], gate_some)
        return context.get_dummy_value()

    long = types.int64
    return types.void(x, long, long, long, long), emit
