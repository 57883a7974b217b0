"""Multiplies rows with a matrix as an operator of PyTorch, `decoding::multiply_rows`.

A row has the same bits in every batch. The operator launches the kernel of `invariant_kernels`. It is registered for
CUDA, for the CPU, where Triton's interpreter runs the kernel in tests, and for the meta device, where a trace sees one
call.

Shapes: T rows, K inputs, N outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.triton_operators import define_operator


@dataclass(frozen=True)
class ProductTile:
    """Sizes of a program's tile, and how it is compiled: threads / 32, and steps of its loop that are in flight."""

    rows: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int

    @classmethod
    def for_dtype(cls, dtype: torch.dtype) -> ProductTile:
        """Returns the tile for numbers of a type: the same for all sizes, so that no sum depends on a choice.

        64 rows are the least that the tensor cores of sm_90 multiply with one instruction. With 64 outputs, the
        smallest matrices of a model of 7 billion weights have 56 programs, and few rows wait for weights: five steps
        in flight are 40 KiB of weights per program. Not tuned on a device.
        """
        return cls(64, 64, 64, 4, 5) if dtype.itemsize == 2 else cls(32, 64, 32, 4, 3)


def multiply_rows(x_TK: Tensor, weight_KN: Tensor, bias_N: Tensor | None, *, in_float32: bool = False) -> Tensor:
    """Returns `x @ weight + bias`, summed in float32, in the type of x or in float32.

    The weight may be a transposed matrix. Rows of x are contiguous.
    """
    out: Tensor = torch.ops.decoding.multiply_rows(x_TK, weight_KN, bias_N, in_float32)
    return out


def require_stable_products(device: torch.device, dtype: torch.dtype) -> None:
    """Multiplies one row alone and at every place of two tiles. Raises: ValueError where its bits differ.

    What a device's tensor cores do within a tile is not documented, and this takes milliseconds. Triton's interpreter
    fails, except within `triton_interpreter.ordered_products`.
    """
    tile = ProductTile.for_dtype(dtype)
    generator = torch.Generator().manual_seed(0)
    # the last steps over inputs and outputs are incomplete
    row, x, weight = (
        torch.randn(shape, generator=generator).to(device=device, dtype=dtype)
        for shape in ((1, 3 * tile.inputs - 8), (2 * tile.rows, 3 * tile.inputs - 8), (3 * tile.inputs - 8, 40))
    )
    alone = multiply_rows(row, weight, None, in_float32=True)
    for parity in (0, 1):  # the other half of the rows is random
        mixed = x.clone()
        mixed[parity::2] = row
        if not bool((multiply_rows(mixed, weight, None, in_float32=True)[parity::2] == alone).all()):
            raise ValueError(
                f"numerics=invariant cannot run on this {device.type}: the product of a row depends on its place in "
                "the batch; set numerics=fast"
            )


def _run_kernel(x: Tensor, weight: Tensor, bias: Tensor | None, in_float32: bool) -> Tensor:
    # here: only this function needs Triton
    from decoding.model.invariant_kernels import multiply_rows as kernel

    num_rows, inputs = x.shape
    outputs = weight.shape[1]
    assert weight.shape[0] == inputs
    assert x.dtype == weight.dtype
    assert x.is_contiguous()
    out = _shape_product(x, weight, bias, in_float32)
    tile = ProductTile.for_dtype(x.dtype)
    input_stride, output_stride = weight.stride()
    if num_rows:
        # without a bias its place holds x: the kernel does not read it
        kernel[-(-num_rows // tile.rows), -(-outputs // tile.outputs)](
            x, weight, x if bias is None else bias, out, num_rows,
            INPUTS=inputs, OUTPUTS=outputs, INPUT_STRIDE=input_stride, OUTPUT_STRIDE=output_stride,
            HAS_BIAS=bias is not None, BLOCK_M=tile.rows, BLOCK_N=tile.outputs, BLOCK_K=tile.inputs,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
    return out


def _shape_product(x: Tensor, weight: Tensor, bias: Tensor | None, in_float32: bool) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[1]), dtype=torch.float32 if in_float32 else x.dtype)


define_operator(
    "multiply_rows(Tensor x, Tensor weight, Tensor? bias, bool in_float32) -> Tensor", _run_kernel, _shape_product
)
