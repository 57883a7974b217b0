"""A Triton kernel for products in which the sum of a row has one order, whatever the number of rows.

A library picks the kernel of a product by its sizes: with few rows it may cut the sum over the inputs into parts, with
many it may not. Here every program sums all inputs of its tile in steps of one size. The tile is the same for one row
and for thousands; rows that fill it up are zeros.

Sizes of the model and strides of the weights are constants of the compiled kernel, so that the compiler knows the
alignment of what it reads. The number of rows is not specialised: a compiler that knows of a single row may sum in
another order.

Imports triton: import this module only where these kernels run.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def multiply_rows(
    x, weight, bias, out, num_rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, INPUT_STRIDE: tl.constexpr, OUTPUT_STRIDE: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Writes a tile of x @ weight + bias, summed in float32; grid (tiles of rows, tiles of outputs).

    x       [num_rows, INPUTS], rows side by side
    weight  [INPUTS, OUTPUTS], numbers `INPUT_STRIDE` and `OUTPUT_STRIDE` apart
    out     [num_rows, OUTPUTS], of the type of x or float32
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = row < num_rows, column < OUTPUTS
    # int64: rows x outputs, and inputs x outputs, may pass 2 ** 31
    x += row.to(tl.int64)[:, None] * INPUTS
    weight += column.to(tl.int64)[None, :] * OUTPUT_STRIDE
    step = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, INPUTS, BLOCK_K):
        k = start + step
        is_k = k < INPUTS
        a = tl.load(x + k[None, :], mask=is_row[:, None] & is_k[None, :], other=0.0)
        b = tl.load(weight + k.to(tl.int64)[:, None] * INPUT_STRIDE, mask=is_k[:, None] & is_column[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    at = out + row.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])
