"""Emits what finds the largest numbers of a row as LLVM code. See `vector_kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import types

from decoding.vector_emitter import LANES, VectorEmitter, llvm_function

_MASK = ir.IntType(LANES)


@llvm_function
def find_lane_maxima(typing: Any, x: Any, x_at: Any, count: Any, y: Any) -> Any:
    """Sets 16 numbers of `y`, each to the largest of every 16th of the `count` numbers that is a number.

    `count` is rounded down to a multiple of 16, and is at least 16.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        data, y_data, (_, at, count, _) = e.data(0, args), e.data(3, args), args

        def raise_largest(i: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            return [e.larger(e.load(data, builder.add(at, i)), carried[0])]

        whole = builder.and_(count, e.integer(-LANES))
        (largest,) = e.loop(whole, LANES, [e.vector(float("-inf"))], raise_largest)
        e.store(largest, y_data, e.integer(0))
        return context.get_dummy_value()

    return types.void(x, types.int64, types.int64, y), emit


@llvm_function
def mask_at_least(typing: Any, x: Any, x_at: Any, count: Any, bound: Any) -> Any:
    """Returns in its lowest 16 bits which of the first `count` numbers, at most 16, are at least `bound`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        (_, at, count, bound) = args
        values = e.load_first(e.data(0, args), at, count, e.vector(float("nan")))
        is_candidate = builder.fcmp_ordered(">=", values, e.broadcast(bound))
        return builder.zext(builder.bitcast(is_candidate, _MASK), ir.IntType(64))

    return types.int64(x, types.int64, types.int64, types.float32), emit


@llvm_function
def count_trailing_zeros(typing: Any, number: Any) -> Any:
    """Returns the index of the lowest bit that is 1; the number is not 0."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), emit
