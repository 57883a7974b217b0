"""Multiplies by weights in the layout that oneDNN wants, packed once when a model is loaded.

PyTorch's own products on a CPU pack a weight anew in every call, or read it unpacked: on a CPU with AVX-512, with a
weight of 9728 x 896 in float32, 2 to 16 rows took 2 to 3 times as long as here, in bfloat16 1.7 to 2 times. On one with
AVX2 alone 2 to 8 rows took up to twice as long as here, but one row half the time: such CPUs do not pack.

Shapes: R rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_PACKED_WEIGHTS = 2**18
"""Numbers in a weight from which on packing pays: a call takes 15 us more than PyTorch's own product."""

MIN_ROWS = 4
"""Rows that a product has at least, zeros added: four take less time than one to three, which oneDNN gives slower
kernels, of another order of additions. So a row has the same bits in any number of rows, on the CPU that was tested."""


def can_pack(weight: Tensor) -> bool:
    """Returns whether this PyTorch on this CPU has packed products for a weight, and they pay."""
    if weight.device.type != "cpu" or weight.numel() < MIN_PACKED_WEIGHTS or not _has_onednn() or not _has_avx512():
        return False
    # what torch.compile uses for frozen weights: no public name, so each is looked for
    operators = torch.ops.mkldnn
    if not all(hasattr(operators, name) for name in ("_reorder_linear_weight", "_linear_pointwise")):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(operators._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _has_avx512() -> bool:
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def pack_weight(weight: Tensor) -> Tensor:
    """Returns a weight `[in, out]` packed, or as it is where that does not pay; the products below take both."""
    if not can_pack(weight):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous(), None)
    return packed


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns x @ weight (+ bias), `[R, in]` by `[in, out]`."""
    if not weight.is_mkldnn:
        return x @ weight if bias is None else torch.addmm(bias, x, weight)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(_fill_rows(x), weight, bias, "none", [], "")
    return product[: len(x)]


def multiply_and_add(residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns residual + x @ weight (+ bias), with the sum inside the product."""
    if not weight.is_mkldnn:
        return torch.addmm(residual if bias is None else residual + bias, x, weight)
    total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(_fill_rows(x), _fill_rows(residual), weight, bias, "add")
    return total[: len(x)]


def _fill_rows(x: Tensor) -> Tensor:
    return x if len(x) >= MIN_ROWS else F.pad(x, (0, 0, 0, MIN_ROWS - len(x)))
