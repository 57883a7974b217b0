"""Emits the vector loops of a compiled decoder as LLVM code: matrix products, scores, softmax, sums of values.

Numba turns loops over arrays into vector code where it can prove that they do not overlap, which it cannot here. These
functions are called from Numba's functions and say which numbers stay in vectors of 16 float32; LLVM cuts a vector to
the registers of the machine.

Every sum has one order, that of its index, whatever the number of rows that are computed side by side. So a row's
result has the same bits alone and among others.

All arrays are one-dimensional and contiguous; `_at` is the index at which something begins in its array. Widths are
multiples of 32. The number of rows is a literal: each number has code of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import types

from decoding.vector_emitter import LANES, VectorEmitter, llvm_function

PANEL = 2 * LANES
"""Columns of a matrix that are stored, and computed, together."""

# Sums of four rows fill the registers of AVX-512; others hold those of two. Measured with AVX2 at 16 and 64 rows, four
# rows side by side make a whole run 1.2 times as long.
TILE = 4 if get_host_cpu_features().get("avx512f") else 2
"""Rows that read a panel, or the keys they have in common, together."""

_KEYS = 4  # keys whose scores are computed side by side


@llvm_function
def multiply_panels(
    typing: Any, rows: Any, panels: Any, x: Any, x_at: Any, x_stride: Any, w: Any, w_at: Any, depth: Any,
    start: Any, start_at: Any, start_stride: Any, y: Any, y_at: Any, y_stride: Any,
) -> Any:  # fmt: skip
    """Sets `y = start + x @ w` for `rows` rows and the columns of `panels` panels `[depth, 32]` that follow each other.

    The weights are float32, or uint16: pairs of bfloat16 as `pair_halves` lays them out.
    """
    num_rows, num_panels = rows.literal_value, panels.literal_value
    has_pairs = w.dtype == types.uint16
    signature = types.void(
        rows, panels, x, types.int64, types.int64, w, types.int64, types.int64,
        start, types.int64, types.int64, y, types.int64, types.int64,
    )  # fmt: skip

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        x_data, w_data, start_data, y_data = (e.data(i, args) for i in (2, 5, 8, 11))
        (_, _, _, x_at, x_stride, _, w_at, depth, _, start_at, start_stride, _, y_at, y_stride) = args
        row_at = [builder.add(x_at, builder.mul(e.integer(r), x_stride)) for r in range(num_rows)]
        panel_size = builder.mul(depth, e.integer(PANEL))
        panel_at = [builder.add(w_at, builder.mul(e.integer(p), panel_size)) for p in range(num_panels)]

        def list_places(first: ir.Value, stride: ir.Value) -> list[ir.Value]:
            rows_at = [builder.add(first, builder.mul(e.integer(r), stride)) for r in range(num_rows)]
            return [builder.add(at, e.integer(column)) for at in rows_at for column in range(0, num_columns, LANES)]

        def add_row(k: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
            offset = builder.mul(k, e.integer(PANEL))
            vectors: list[ir.Value] = []
            for at in panel_at:
                vectors += e.load_panel_row(w_data, builder.add(at, offset), has_pairs)
            scalars = [e.load_broadcast(x_data, builder.add(at, k)) for at in row_at]
            factors = [(scalar, vector) for scalar in scalars for vector in vectors]
            return [e.multiply_add(*pair, total) for pair, total in zip(factors, sums, strict=True)]

        num_columns = num_panels * PANEL
        sums = e.loop(depth, 1, [e.load(start_data, at) for at in list_places(start_at, start_stride)], add_row)
        for total, at in zip(sums, list_places(y_at, y_stride), strict=True):
            e.store(total, y_data, at)
        return context.get_dummy_value()

    return signature, emit


@llvm_function
def score_keys(
    typing: Any, rows: Any, q: Any, q_at: Any, width: Any, kv: Any, kv_at: Any,
    slots: Any, slots_at: Any, count: Any, scores: Any, scores_at: Any, scores_stride: Any,
) -> Any:  # fmt: skip
    """Sets `scores[r, i] = q[r] . key of slots[i]` for `rows` queries and `count` >= 1 keys.

    Writes up to 3 scores too many, of no meaning. A key and its value are 2 * `width` numbers.
    """
    num_rows = rows.literal_value
    long = types.int64
    signature = types.void(rows, q, long, long, kv, long, slots, long, long, scores, long, long)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        q_data, kv_data, slots_data, scores_data = (e.data(i, args) for i in (1, 4, 6, 9))
        (_, _, q_at, width, _, kv_at, _, slots_at, count, _, scores_at, scores_stride) = args
        row_at = [builder.add(q_at, builder.mul(e.integer(r), width)) for r in range(num_rows)]
        stride, last = builder.mul(e.integer(2), width), builder.sub(count, e.integer(1))

        def score_some(i: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            key_at = []
            for key in range(_KEYS):
                # beyond the last key the last one again
                index = e.minimum(builder.add(i, e.integer(key)), last)
                slot = e.load_long(slots_data, builder.add(slots_at, index))
                key_at.append(builder.add(kv_at, builder.mul(slot, stride)))

            def add_lanes(d: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
                keys = [e.load(kv_data, builder.add(at, d)) for at in key_at]
                for at in key_at:
                    e.prefetch(kv_data, builder.add(builder.add(at, width), d))
                queries = [e.load(q_data, builder.add(at, d)) for at in row_at]
                return [e.multiply_add(queries[n // _KEYS], keys[n % _KEYS], total) for n, total in enumerate(sums)]

            sums = e.loop(width, LANES, [e.vector(0.0)] * (num_rows * _KEYS), add_lanes)
            for r in range(num_rows):
                a, b, c, d = sums[r * _KEYS : (r + 1) * _KEYS]
                four = e.fold_pairs(e.fold_pairs(a, b, 8), e.fold_pairs(c, d, 8), 4)
                four = e.fold_pairs(four, four, 2)
                four = e.fold_pairs(four, four, 1)
                # the four sums are the first lanes
                at = builder.add(builder.add(scores_at, builder.mul(e.integer(r), scores_stride)), i)
                e.store(e.shuffle(four, four, range(_KEYS)), scores_data, at)
            return []

        e.loop(count, _KEYS, [], score_some)
        return context.get_dummy_value()

    return signature, emit


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
            x = e.load(data, builder.add(at, i))
            return [builder.select(builder.fcmp_ordered(">", x, carried[0]), x, carried[0])]

        (largest,) = e.loop(count, LANES, [low], raise_largest)
        for width in (8, 4, 2, 1):
            other = e.shuffle(largest, largest, [lane ^ width for lane in range(LANES)])
            largest = builder.select(builder.fcmp_ordered(">", other, largest), other, largest)

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
def add_values(
    typing: Any, rows: Any, weights: Any, weights_at: Any, weights_stride: Any, kv: Any, kv_at: Any,
    width: Any, slots: Any, slots_at: Any, count: Any, out: Any, out_at: Any,
) -> Any:  # fmt: skip
    """Adds `weights[r, i] * value of slots[i]` to `out[r]`, `width` numbers, for `rows` rows and `count` keys."""
    num_rows = rows.literal_value
    long = types.int64
    signature = types.void(rows, weights, long, long, kv, long, long, slots, long, long, out, long)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        weights_data, kv_data, slots_data, out_data = (e.data(i, args) for i in (1, 4, 7, 10))
        (_, _, weights_at, weights_stride, _, kv_at, width, _, slots_at, count, _, out_at) = args
        rows_at = [builder.add(weights_at, builder.mul(e.integer(r), weights_stride)) for r in range(num_rows)]
        stride = builder.mul(e.integer(2), width)
        values_at = builder.add(kv_at, width)

        def add_columns(first: ir.Value, num_columns: int) -> None:
            columns = [builder.add(first, e.integer(at)) for at in range(0, num_columns, LANES)]
            outs_at = [builder.add(out_at, builder.mul(e.integer(r), width)) for r in range(num_rows)]
            places = [builder.add(at, column) for at in outs_at for column in columns]

            def add_key(i: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
                slot = e.load_long(slots_data, builder.add(slots_at, i))
                at = builder.add(values_at, builder.mul(slot, stride))
                vectors = [e.load(kv_data, builder.add(at, column)) for column in columns]
                scalars = [e.load_broadcast(weights_data, builder.add(row, i)) for row in rows_at]
                factors = [(scalar, vector) for scalar in scalars for vector in vectors]
                return [e.multiply_add(*pair, total) for pair, total in zip(factors, sums, strict=True)]

            sums = e.loop(count, 1, [e.load(out_data, at) for at in places], add_key)
            for total, at in zip(sums, places, strict=True):
                e.store(total, out_data, at)

        # sums of 64 columns fill the registers; of the 32 that may remain there are half as many
        wide = builder.and_(width, e.integer(-2 * PANEL))
        e.repeat(wide, 2 * PANEL, lambda d: add_columns(d, 2 * PANEL))
        e.repeat(builder.sub(width, wide), PANEL, lambda d: add_columns(builder.add(wide, d), PANEL))
        return context.get_dummy_value()

    return signature, emit


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
    """Sets `width` numbers of `y` to those of `x`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        x_data, y_data, (_, x_at, _, y_at, width) = e.data(0, args), e.data(2, args), args
        e.repeat(width, LANES, lambda i: e.store(e.load(x_data, builder.add(x_at, i)), y_data, builder.add(y_at, i)))
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
