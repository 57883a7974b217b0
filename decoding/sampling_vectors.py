"""Emits what sampling does with runs of logits as LLVM code, 16 at a time: Numba takes them one by one. Needs Numba."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from decoding.noise import GOLDEN_32
from decoding.vector_emitter import LANES, VectorEmitter, llvm_function

_LN_2 = np.float32(np.log(2.0))
_OFFSET = np.float32(32) + np.float32(127.001)
"""Bits of a hash, the exponent of 1.0 in a float32, and what the rounding of a bound may lose."""

_INTS = ir.VectorType(ir.IntType(32), LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


@llvm_function
def copy_run(typing: Any, row: Any, start: Any, count: Any, run: Any) -> Any:
    """Copies `count` logits from `start` on to the beginning of `run`, and returns the largest; -inf for NaN alone.

    *Mutates* up to 16 numbers after them, to -inf.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        row_data, run_data, (_, start, count, _) = e.data(0, args), e.data(3, args), args

        def copy(i: ir.Value, x: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            e.store(x, run_data, i)
            return [e.larger(x, carried[0])]

        whole = builder.and_(count, e.integer(-LANES))

        def load(i: ir.Value) -> ir.Value:
            return e.load(row_data, builder.add(start, i))

        carried = e.loop(whole, LANES, [e.vector(-np.inf)], lambda i, carried: copy(i, load(i), carried))
        rest = e.load_first(row_data, builder.add(start, whole), builder.sub(count, whole), e.vector(-np.inf))
        (largest,) = copy(whole, rest, carried)
        return e.find_largest(largest)

    return types.float32(row, types.int64, types.int64, run), emit


@llvm_function
def bound_sums(
    typing: Any, run: Any, start: Any, count: Any, inverse: Any, first: Any, second: Any, bounds: Any, hashes: Any
) -> Any:
    """Writes hashes and upper bounds of s + g for a run of `count` logits, whose first id is `start`; returns the
    largest bound. *Mutates* up to 16 numbers after them.

    With u = hash / 2^32 the noise is at most -ln u. The bits of a float32, read as an integer and divided by 2^23, are
    exponent + mantissa - 1, at most the exponent's offset + log2. So one subtraction bounds the logarithm.

    inverse        inverse of the temperature
    first, second  the halves of the key of this row
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        run_data, bounds_data, hashes_data = (e.data(i, args) for i in (0, 6, 7))
        (_, start, count, inverse, first, second, _, _) = args
        inverse, first, second = (e.broadcast(x, k) for x, k in ((inverse, _FLOATS), (first, _INTS), (second, _INTS)))
        lanes = ir.Constant(_INTS, list(range(LANES)))

        def constant(value: int) -> ir.Constant:
            return ir.Constant(_INTS, [value & 0xFFFFFFFF] * LANES)

        def mix(x: ir.Value) -> ir.Value:
            for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
                x = builder.mul(builder.xor(x, builder.lshr(x, constant(shift))), constant(factor))
            return builder.xor(x, builder.lshr(x, constant(16)))

        def bound(i: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            at = builder.trunc(builder.add(start, i), ir.IntType(32))
            tokens = builder.add(e.broadcast(at, _INTS), lanes)
            hashed = mix(builder.add(builder.mul(tokens, constant(GOLDEN_32)), first))
            hashed = mix(builder.add(hashed, second))
            e.store_ints(hashed, hashes_data, i)
            bits = builder.sitofp(builder.bitcast(builder.uitofp(hashed, _FLOATS), _INTS), _FLOATS)
            log_2 = builder.fmul(bits, e.vector(2.0**-23))
            noise = builder.fmul(builder.fsub(e.vector(float(_OFFSET)), log_2), e.vector(float(_LN_2)))
            total = builder.fadd(builder.fmul(e.load(run_data, i), inverse), noise)
            e.store(total, bounds_data, i)
            return [e.larger(total, carried[0])]

        (largest,) = e.loop(count, LANES, [e.vector(-np.inf)], bound)
        return e.find_largest(largest)

    long, number, key = types.int64, types.float32, types.uint32
    return number(run, long, long, number, key, key, bounds, hashes), emit
