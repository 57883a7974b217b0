"""Emits the attention of a compiled decoder as LLVM code: scores of keys, and sums of values. See `vector_kernels`.

Keys and values are read in their slots, once for several queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types

from decoding.vector_emitter import FLOAT, LANES, SHORT, VectorEmitter, llvm_function
from decoding.vector_kernels import HAS_32_REGISTERS, PANEL

QUERIES = 4 if HAS_32_REGISTERS else 2
"""Queries that read a key, or a value, together."""

_KEYS = 4  # keys whose scores are stored together


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
                step = _KEYS if num_rows == 1 or HAS_32_REGISTERS else 2
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
            most = 2 * PANEL if num_rows == 1 or HAS_32_REGISTERS else PANEL
            wide = builder.and_(width, e.integer(-most))
            e.repeat(wide, most, lambda d: add_columns(d, most))
            if most > PANEL:
                e.repeat(builder.sub(width, wide), PANEL, lambda d: add_columns(builder.add(wide, d), PANEL))

        for num_rows in (1, QUERIES):
            with builder.if_then(builder.icmp_signed("==", rows, e.integer(num_rows))):
                emit_rows(num_rows)
        return context.get_dummy_value()

    return signature, emit
