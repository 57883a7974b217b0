"""Emits the vector loops of a compiled decoder as LLVM code: matrix products, scores, softmax, sums of values.

Numba turns loops over arrays into vector code where it can prove that they do not overlap, which it cannot here. These
functions are called from Numba's functions and say which numbers stay in vectors of 16 float32; LLVM cuts a vector to
the registers of the machine.

Every sum has one order, that of its index, whatever the number of rows that are computed side by side. So a row's
result has the same bits alone and among others.

How much is computed side by side follows from the registers: sums that do not fit in them are written to the stack and
read again for every number that is added. 16 sums of 8 floats leave none of AVX2's 16 registers for what is added; 12
do (the products of the bundled target in one thread, 16 rows: 690 and 580 us). With AVX-512 24 sums of 16 floats leave
8 of 32 registers: 6 rows together in place of 4 (160 and 200 us), 8 rows of one panel (190 and 230 us for 8).

All arrays are one-dimensional and contiguous; `_at` is the index at which something begins in its array. Widths are
multiples of 32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types

from decoding.cpu_features import has_cpu_feature, has_pair_products
from decoding.vector_emitter import FLOAT, LANES, SHORT, VectorEmitter, llvm_function

PANEL = 2 * LANES
"""Columns of a matrix that are stored, and computed, together."""

_HAS_32_REGISTERS = has_cpu_feature("avx512f")

_TOGETHER = (4, 4, 2, 2, 2, 2, 1, 1) if _HAS_32_REGISTERS else (4, 1, 1, 1, 1, 1)
"""Panels that one row, two rows, ... are multiplied by in one go."""
_VECTORS = (8, 8, 4, 4, 4, 4, 2, 2) if _HAS_32_REGISTERS else (4, 2, 1, 1, 1, 1)
"""Vectors of 16 columns whose sums the registers hold for one row, two rows, ..., and for what is added to them."""
ROWS = len(_TOGETHER)
"""Rows that read a panel together, at most."""

QUERIES = 4 if _HAS_32_REGISTERS else 2
"""Queries that read a key, or a value, together."""

_KEYS = 4  # keys whose scores are stored together


def has_pairs_type(weights: Any) -> bool:
    return bool(weights.dtype == types.int16) and has_pair_products()


@llvm_function
def is_paired(typing: Any, w: Any) -> Any:
    """Returns whether these weights are laid out for vectors of pairs of bfloat16."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(ir.IntType(1), int(has_pairs_type(w)))

    return types.boolean(w), emit


@llvm_function
def count_together(typing: Any, rows: Any) -> Any:
    """Returns how many panels `rows` rows read together, 1 <= rows <= ROWS."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        together = e.integer(1)
        for rows, panels in enumerate(_TOGETHER, start=1):
            together = builder.select(builder.icmp_signed("==", args[0], e.integer(rows)), e.integer(panels), together)
        return together

    return types.int64(types.int64), emit


@llvm_function
def multiply_panels(
    typing: Any, rows: Any, panels: Any, x: Any, x_at: Any, x_stride: Any, w: Any, w_at: Any, depth: Any,
    start: Any, start_at: Any, start_stride: Any, y: Any, y_at: Any, y_stride: Any,
) -> Any:  # fmt: skip
    """Sets `y = start + x @ w` for `rows` rows and the columns of `panels` panels `[depth, 32]` that follow each other.

    At most ROWS rows; one panel, or as many as `count_together` says. `weight_panels` says how the weights are laid
    out. Rows of float32 are multiplied by float32 or uint16, those of bfloat16 by int16: for others nothing is emitted.
    """
    has_halves, has_pairs = w.dtype == types.uint16, has_pairs_type(w)
    long = types.int64
    signature = types.void(long, long, x, long, long, w, long, long, start, long, long, y, long, long)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        x_data, w_data, start_data, y_data = (e.data(i, args) for i in (2, 5, 8, 11))
        (rows, panels, _, x_at, x_stride, _, w_at, depth, _, start_at, start_stride, _, y_at, y_stride) = args
        if has_pairs == (x.dtype == types.float32):  # a branch of `multiply` that is not taken is compiled, too
            return context.get_dummy_value()
        if has_pairs:
            depth_step, load_scalar, multiply_add = 2, e.load_pair_broadcast, e.multiply_add_pairs
        else:
            depth_step, load_scalar, multiply_add = 1, e.load_broadcast, e.multiply_add
        panel_size = builder.mul(depth, e.integer(PANEL))

        def multiply_vectors(num_rows: int, vectors: Sequence[int]) -> None:
            def list_places(first: ir.Value, stride: ir.Value) -> list[ir.Value]:
                rows_at = [builder.add(first, builder.mul(e.integer(r), stride)) for r in range(num_rows)]
                return [builder.add(at, e.integer(vector * LANES)) for at in rows_at for vector in vectors]

            def add_row(k: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
                offset = builder.add(w_at, builder.mul(k, e.integer(PANEL)))
                weights = []
                for vector in vectors:
                    at = builder.add(offset, builder.mul(panel_size, e.integer(vector // 2)))
                    if has_pairs:
                        weights.append(e.load_pairs(w_data, builder.add(at, e.integer(vector % 2 * PANEL))))
                    else:
                        weights.append(e.load_panel_half(w_data, at, vector % 2, has_halves))
                scalars = [load_scalar(x_data, builder.add(at, k)) for at in row_at]
                factors = [(scalar, weight) for scalar in scalars for weight in weights]
                return [multiply_add(*pair, total) for pair, total in zip(factors, sums, strict=True)]

            row_at = [builder.add(x_at, builder.mul(e.integer(r), x_stride)) for r in range(num_rows)]
            begin = [e.load(start_data, at) for at in list_places(start_at, start_stride)]
            sums = e.loop(depth, depth_step, begin, add_row)
            for total, at in zip(sums, list_places(y_at, y_stride), strict=True):
                e.store(total, y_data, at)

        for num_rows, (together, step) in enumerate(zip(_TOGETHER, _VECTORS, strict=True), start=1):
            for num_panels in {1, together}:
                is_this = builder.icmp_signed("==", rows, e.integer(num_rows))
                is_this = builder.and_(is_this, builder.icmp_signed("==", panels, e.integer(num_panels)))
                with builder.if_then(is_this):
                    for first in range(0, 2 * num_panels, step):
                        multiply_vectors(num_rows, range(first, min(first + step, 2 * num_panels)))
        return context.get_dummy_value()

    return signature, emit


@llvm_function
def score_keys(
    typing: Any, rows: Any, q: Any, q_at: Any, width: Any, kv: Any, kv_at: Any,
    slots: Any, slots_at: Any, count: Any, scores: Any, scores_at: Any, scores_stride: Any,
) -> Any:  # fmt: skip
    """Sets `scores[r, i] = q[r] . key of slots[i]` for `rows` queries, 1 or QUERIES, and `count` >= 1 keys.

    Writes up to 3 scores too many, of no meaning. A key and its value are 2 * `width` numbers.
    """
    are_pairs = kv.dtype == types.uint16
    long = types.int64
    signature = types.void(long, q, long, long, kv, long, slots, long, long, scores, long, long)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        q_data, kv_data, slots_data, scores_data = (e.data(i, args) for i in (1, 4, 6, 9))
        (rows, _, q_at, width, _, kv_at, _, slots_at, count, _, scores_at, scores_stride) = args
        if are_pairs:
            number, lanes_of_key = SHORT, 2 * LANES
            load_key, load_query, multiply_add = e.load_pairs, e.load_as_pairs, e.multiply_add_pairs
        else:
            number, lanes_of_key = FLOAT, LANES
            load_key, load_query, multiply_add = e.load, e.load, e.multiply_add

        def emit_rows(num_rows: int) -> None:
            row_at = [builder.add(q_at, builder.mul(e.integer(r), width)) for r in range(num_rows)]
            stride, last = builder.mul(e.integer(2), width), builder.sub(count, e.integer(1))

            def score_some(i: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
                key_at = []
                for key in range(_KEYS):
                    # beyond the last key the last one again
                    index = e.minimum(builder.add(i, e.integer(key)), last)
                    slot = e.load_long(slots_data, builder.add(slots_at, index))
                    key_at.append(builder.add(kv_at, builder.mul(slot, stride)))

                def sum_products(some_at: Sequence[ir.Value]) -> list[ir.Value]:
                    def add_lanes(d: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
                        keys = [load_key(kv_data, builder.add(at, d)) for at in some_at]
                        if num_rows == 1:  # rows together find the values in the cache, all but the first of them
                            for at in some_at:
                                e.prefetch(kv_data, builder.add(builder.add(at, width), d), number)
                        queries = [load_query(q_data, builder.add(at, d)) for at in row_at]
                        factors = [(query, key) for query in queries for key in keys]
                        return [multiply_add(*pair, total) for pair, total in zip(factors, sums, strict=True)]

                    return e.loop(width, lanes_of_key, [e.vector(0.0)] * (num_rows * len(some_at)), add_lanes)

                # two queries and two keys are as many sums as AVX2 holds
                step = _KEYS if num_rows == 1 or _HAS_32_REGISTERS else 2
                halves: list[list[ir.Value]] = [[] for _ in range(num_rows)]
                for first in range(0, _KEYS, step):
                    sums = sum_products(key_at[first : first + step])
                    for at in range(0, len(sums), 2):
                        halves[at // step].append(e.fold_pairs(sums[at], sums[at + 1], 8))
                folded = [e.fold_pairs(first, second, 4) for first, second in halves]
                for lanes in (2, 1):
                    if len(folded) == 1:
                        folded *= 2
                    folded = [e.fold_pairs(folded[at], folded[at + 1], lanes) for at in range(0, len(folded), 2)]
                for r in range(num_rows):
                    at = builder.add(builder.add(scores_at, builder.mul(e.integer(r), scores_stride)), i)
                    lanes_of_row = range(r * _KEYS, (r + 1) * _KEYS)
                    e.store(e.shuffle(folded[0], folded[0], lanes_of_row), scores_data, at)
                return []

            e.loop(count, _KEYS, [], score_some)

        for num_rows in (1, QUERIES):
            with builder.if_then(builder.icmp_signed("==", rows, e.integer(num_rows))):
                emit_rows(num_rows)
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
def add_values(
    typing: Any, rows: Any, weights: Any, weights_at: Any, weights_stride: Any, kv: Any, kv_at: Any,
    width: Any, slots: Any, slots_at: Any, count: Any, out: Any, out_at: Any,
) -> Any:  # fmt: skip
    """Adds `weights[r, i] * value of slots[i]` to `out[r]`, `width` numbers, for `count` keys.

    `rows` is 1 or QUERIES.
    """
    are_pairs = kv.dtype == types.uint16
    long = types.int64
    signature = types.void(long, weights, long, long, kv, long, long, slots, long, long, out, long)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        weights_data, kv_data, slots_data, out_data = (e.data(i, args) for i in (1, 4, 7, 10))
        (rows, _, weights_at, weights_stride, _, kv_at, width, _, slots_at, count, _, out_at) = args

        def reorder(pick: Callable[..., Any], vectors: list[ir.Value]) -> list[ir.Value]:
            """Returns what `pick` makes of each two vectors where values are pairs of bfloat16, or these vectors."""
            if not are_pairs:
                return vectors
            return [vector for at in range(0, len(vectors), 2) for vector in pick(*vectors[at : at + 2])]

        def emit_rows(num_rows: int) -> None:
            rows_at = [builder.add(weights_at, builder.mul(e.integer(r), weights_stride)) for r in range(num_rows)]
            stride = builder.mul(e.integer(2), width)
            values_at = builder.add(kv_at, width)

            def add_columns(first: ir.Value, num_columns: int) -> None:
                columns = [builder.add(first, e.integer(at)) for at in range(0, num_columns, LANES)]
                outs_at = [builder.add(out_at, builder.mul(e.integer(r), width)) for r in range(num_rows)]
                places = [builder.add(at, column) for at in outs_at for column in columns]

                def load_value(at: ir.Value) -> list[ir.Value]:
                    if not are_pairs:
                        return [e.load(kv_data, builder.add(at, column)) for column in columns]
                    pairs = [e.load_pairs(kv_data, builder.add(at, column)) for column in columns[::2]]
                    return [vector for pair in pairs for vector in e.widen_pairs(pair)]

                def add_key(i: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
                    slot = e.load_long(slots_data, builder.add(slots_at, i))
                    at = builder.add(values_at, builder.mul(slot, stride))
                    vectors = load_value(at)
                    scalars = [e.load_broadcast(weights_data, builder.add(row, i)) for row in rows_at]
                    factors = [(scalar, vector) for scalar in scalars for vector in vectors]
                    return [e.multiply_add(*pair, total) for pair, total in zip(factors, sums, strict=True)]

                sums = e.loop(count, 1, reorder(e.split_pairs, [e.load(out_data, at) for at in places]), add_key)
                for total, at in zip(reorder(e.join_pairs, sums), places, strict=True):
                    e.store(total, out_data, at)

            # as many sums as the registers hold beside what is added
            most = 2 * PANEL if num_rows == 1 or _HAS_32_REGISTERS else PANEL
            wide = builder.and_(width, e.integer(-most))
            e.repeat(wide, most, lambda d: add_columns(d, most))
            if most > PANEL:
                e.repeat(builder.sub(width, wide), PANEL, lambda d: add_columns(builder.add(wide, d), PANEL))

        for num_rows in (1, QUERIES):
            with builder.if_then(builder.icmp_signed("==", rows, e.integer(num_rows))):
                emit_rows(num_rows)
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
