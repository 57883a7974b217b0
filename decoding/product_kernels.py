"""Emits the products of a compiled decoder as LLVM code: rows by panels of weights. See `vector_kernels`.

How much is computed side by side follows from the registers: sums that do not fit in them are written to the stack and
read again for every number that is added. 16 sums of 8 floats leave none of AVX2's 16 registers for what is added; 12
do (the products of the bundled target in one thread, 16 rows: 690 and 580 us). With AVX-512 24 sums of 16 floats leave
8 of 32 registers: 6 rows together in place of 4 (160 and 200 us), 8 rows of one panel (190 and 230 us for 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import types

from decoding.cpu_features import has_pair_products
from decoding.vector_emitter import LANES, VectorEmitter, llvm_function
from decoding.vector_kernels import HAS_32_REGISTERS, PANEL

_TOGETHER = (4, 4, 2, 2, 2, 2, 1, 1) if HAS_32_REGISTERS else (4, 1, 1, 1, 1, 1)
"""Panels that one row, two rows, ... are multiplied by in one go."""
_VECTORS = (8, 8, 4, 4, 4, 4, 2, 2) if HAS_32_REGISTERS else (4, 2, 1, 1, 1, 1)
"""Vectors of 16 columns whose sums the registers hold for one row, two rows, ..., and for what is added to them."""
ROWS = len(_TOGETHER)
"""Rows that read a panel together, at most."""


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
