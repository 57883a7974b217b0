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

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
PANEL = 2 * LANES
"""Columns of a matrix that are stored, and computed, together."""

# Sums of four rows fill the registers of AVX-512; others hold those of two. Measured with AVX2 at 16 and 64 rows, four
# rows side by side make a whole run 1.2 times as long.
TILE = 4 if get_host_cpu_features().get("avx512f") else 2
"""Rows that read a panel, or the keys they have in common, together."""

_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)
_KEYS = 4  # keys whose scores are computed side by side


class _Emitter:
    """Emits operations on vectors of float32 into a function that Numba compiles."""

    def __init__(self, context: Any, builder: ir.IRBuilder, signature: Any) -> None:
        self.context, self.builder, self.signature = context, builder, signature

    def data(self, position: int, args: Sequence[ir.Value]) -> ir.Value:
        """Returns the address of the array that is argument number `position`."""
        array_type = self.signature.args[position]
        return self.context.make_array(array_type)(self.context, self.builder, args[position]).data

    def integer(self, value: int) -> ir.Constant:
        return ir.Constant(_LONG, value)

    def vector(self, value: float) -> ir.Constant:
        return ir.Constant(_VECTOR, [value] * LANES)

    def address(self, data: ir.Value, index: ir.Value, kind: ir.Type = _FLOAT) -> ir.Value:
        return self.builder.gep(data, [index], source_etype=kind)

    def load(self, data: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.load(self.address(data, index), align=4, typ=_VECTOR)

    def store(self, value: ir.Value, data: ir.Value, index: ir.Value) -> None:
        pointer = self.builder.bitcast(self.address(data, index), value.type.as_pointer())
        self.builder.store(value, pointer, align=4)

    def load_long(self, data: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.load(self.address(data, index, _LONG), align=8, typ=_LONG)

    def broadcast(self, scalar: ir.Value, kind: ir.VectorType = _VECTOR) -> ir.Value:
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(_INT, 0))
        return self.builder.shuffle_vector(first, first, ir.Constant(_INTS, [0] * LANES))

    def lanes_below(self, count: ir.Value) -> ir.Value:
        """Returns for each lane whether its number is below `count`."""
        lanes = ir.Constant(ir.VectorType(_LONG, LANES), list(range(LANES)))
        return self.builder.icmp_signed("<", lanes, self.broadcast(count, lanes.type))

    def load_broadcast(self, data: ir.Value, index: ir.Value) -> ir.Value:
        return self.broadcast(self.builder.load(self.address(data, index), align=4, typ=_FLOAT))

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Returns a * b + c, rounded once where the machine can."""
        return self.call("llvm.fmuladd", a, b, c)

    def call(self, name: str, *vectors: ir.Value) -> ir.Value:
        """Calls a function that LLVM has for every kind of vector."""
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(vectors))
        function: Any = cgutils.get_or_insert_function(self.builder.module, kind, f"{name}.v{LANES}f32")  # type: ignore[no-untyped-call]
        return self.builder.call(function, vectors)

    def shuffle(self, a: ir.Value, b: ir.Value, lanes: Sequence[int]) -> ir.Value:
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT, len(lanes)), list(lanes)))

    def fold_pairs(self, a: ir.Value, b: ir.Value, width: int) -> ir.Value:
        """Adds each run of `width` lanes to the run after it, in `a` and in `b`; those of `a` come first."""
        low = [lane for lane in range(2 * LANES) if lane // width % 2 == 0]
        return self.builder.fadd(self.shuffle(a, b, low), self.shuffle(a, b, [lane + width for lane in low]))

    def sum_lanes(self, a: ir.Value) -> ir.Value:
        for width in (8, 4, 2, 1):
            a = self.fold_pairs(a, a, width)
        return self.builder.extract_element(a, ir.Constant(_INT, 0))

    def minimum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def loop(
        self,
        count: ir.Value,
        step: int,
        carried: Sequence[ir.Value],
        body: Callable[[ir.Value, Sequence[ir.Value]], Sequence[ir.Value]],
    ) -> list[ir.Value]:
        """Emits `for i in range(0, count, step): carried = body(i, carried)`; returns what is carried at the end."""
        builder = self.builder
        before = builder.block
        head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        i = builder.phi(_LONG)
        i.add_incoming(self.integer(0), before)
        phis = []
        for value in carried:
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            phis.append(phi)
        builder.cbranch(builder.icmp_signed("<", i, count), inside, after)
        builder.position_at_end(inside)
        results = body(i, phis)
        i.add_incoming(builder.add(i, self.integer(step)), builder.block)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return phis

    def exp(self, x: ir.Value) -> ir.Value:
        """Returns e^x within 2 units in the last place: 2^n by the exponent's bits, the rest by Cephes' polynomial."""
        builder = self.builder
        # selects, not minima: NaN must come out as NaN
        for bound, sign in ((88.0, ">"), (-87.0, "<")):
            x = builder.select(builder.fcmp_ordered(sign, x, self.vector(bound)), self.vector(bound), x)
        n = self.call("llvm.roundeven", builder.fmul(x, self.vector(1.44269504)))
        r = self.multiply_add(n, self.vector(-0.693359375), x)
        r = self.multiply_add(n, self.vector(2.12194440e-4), r)
        p = self.vector(1.9875691500e-4)
        for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            p = self.multiply_add(p, r, self.vector(coefficient))
        p = builder.fadd(self.multiply_add(p, builder.fmul(r, r), r), self.vector(1.0))
        # NaN's integer is arbitrary, but NaN times any number is NaN
        exponent = builder.add(builder.fptosi(n, _INTS), ir.Constant(_INTS, [127] * LANES))
        power = builder.bitcast(builder.shl(exponent, ir.Constant(_INTS, [23] * LANES)), _VECTOR)
        return builder.fmul(p, power)


def vector_function(function: Callable[..., Any]) -> Any:
    """Makes a function that emits code callable from functions that Numba compiles."""
    return intrinsic(prefer_literal=True)(function)


@vector_function
def multiply_panel(
    typing: Any, rows: Any, x: Any, x_at: Any, x_stride: Any, w: Any, w_at: Any, depth: Any,
    start: Any, start_at: Any, start_stride: Any, y: Any, y_at: Any, y_stride: Any,
) -> Any:  # fmt: skip
    """Sets `y = start + x @ w` for `rows` rows and the 32 columns of one panel `[depth, 32]`."""
    num_rows = rows.literal_value
    signature = types.void(
        rows, x, types.int64, types.int64, w, types.int64, types.int64,
        start, types.int64, types.int64, y, types.int64, types.int64,
    )  # fmt: skip

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = _Emitter(context, builder, sig)
        x_data, w_data, start_data, y_data = (e.data(i, args) for i in (1, 4, 7, 10))
        (_, _, x_at, x_stride, _, w_at, depth, _, start_at, start_stride, _, y_at, y_stride) = args
        row_at = [builder.add(x_at, builder.mul(e.integer(r), x_stride)) for r in range(num_rows)]
        sums = []
        for r in range(num_rows):
            at = builder.add(start_at, builder.mul(e.integer(r), start_stride))
            sums += [e.load(start_data, at), e.load(start_data, builder.add(at, e.integer(LANES)))]

        def add_row(k: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
            at = builder.add(w_at, builder.mul(k, e.integer(PANEL)))
            halves = [e.load(w_data, at), e.load(w_data, builder.add(at, e.integer(LANES)))]
            scalars = [e.load_broadcast(x_data, builder.add(row, k)) for row in row_at]
            return [e.multiply_add(scalars[i // 2], halves[i % 2], total) for i, total in enumerate(sums)]

        sums = e.loop(depth, 1, sums, add_row)
        for r in range(num_rows):
            at = builder.add(y_at, builder.mul(e.integer(r), y_stride))
            e.store(sums[2 * r], y_data, at)
            e.store(sums[2 * r + 1], y_data, builder.add(at, e.integer(LANES)))
        return context.get_dummy_value()

    return signature, emit


@vector_function
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
        e = _Emitter(context, builder, sig)
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


@vector_function
def exponentiate(typing: Any, scores: Any, scores_at: Any, count: Any) -> Any:
    """Replaces `count` scores by exp(score - largest score) and returns their sum.

    *Mutates* up to 16 numbers after them.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = _Emitter(context, builder, sig)
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


@vector_function
def add_values(
    typing: Any, rows: Any, weights: Any, weights_at: Any, weights_stride: Any, kv: Any, kv_at: Any,
    width: Any, slots: Any, slots_at: Any, count: Any, out: Any, out_at: Any,
) -> Any:  # fmt: skip
    """Adds `weights[r, i] * value of slots[i]` to `out[r]`, `width` numbers, for `rows` rows and `count` keys."""
    num_rows = rows.literal_value
    long = types.int64
    signature = types.void(rows, weights, long, long, kv, long, long, slots, long, long, out, long)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = _Emitter(context, builder, sig)
        weights_data, kv_data, slots_data, out_data = (e.data(i, args) for i in (1, 4, 7, 10))
        (_, _, weights_at, weights_stride, _, kv_at, width, _, slots_at, count, _, out_at) = args
        rows_at = [builder.add(weights_at, builder.mul(e.integer(r), weights_stride)) for r in range(num_rows)]
        stride = builder.mul(e.integer(2), width)
        values_at = builder.add(kv_at, width)

        def add_columns(d: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            places = []
            for r in range(num_rows):
                at = builder.add(builder.add(out_at, builder.mul(e.integer(r), width)), d)
                places += [at, builder.add(at, e.integer(LANES))]

            def add_key(i: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
                slot = e.load_long(slots_data, builder.add(slots_at, i))
                at = builder.add(builder.add(values_at, d), builder.mul(slot, stride))
                halves = [e.load(kv_data, at), e.load(kv_data, builder.add(at, e.integer(LANES)))]
                scalars = [e.load_broadcast(weights_data, builder.add(row, i)) for row in rows_at]
                return [e.multiply_add(scalars[n // 2], halves[n % 2], total) for n, total in enumerate(sums)]

            sums = e.loop(count, 1, [e.load(out_data, at) for at in places], add_key)
            for total, at in zip(sums, places, strict=True):
                e.store(total, out_data, at)
            return []

        e.loop(width, PANEL, [], add_columns)
        return context.get_dummy_value()

    return signature, emit


@vector_function
def sum_squares(typing: Any, x: Any, x_at: Any, width: Any) -> Any:
    """Returns the sum of `width` squares."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = _Emitter(context, builder, sig)
        data, (_, at, width) = e.data(0, args), args

        def add_squares(i: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            x = e.load(data, builder.add(at, i))
            return [e.multiply_add(x, x, carried[0])]

        return e.sum_lanes(e.loop(width, LANES, [e.vector(0.0)], add_squares)[0])

    return types.float32(x, types.int64, types.int64), emit


@vector_function
def gate_values(typing: Any, x: Any, gate_at: Any, up_at: Any, width: Any, out_at: Any) -> Any:
    """Sets `out = silu(gate) * up`, all three in `x` and `width` long."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = _Emitter(context, builder, sig)
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
