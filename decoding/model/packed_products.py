"""Multiplies by weights in the layout that oneDNN wants, packed once when a model is loaded.

PyTorch's own products on a CPU pack a weight anew in every call, or read it unpacked: on a CPU with AVX-512, with a
weight of 9728 x 896 in float32, 2 to 16 rows took 2 to 3 times as long as here, in bfloat16 1.7 to 2 times. On one with
AVX2 alone 2 to 8 rows took up to twice as long as here, but one row half the time: such CPUs do not pack.

Shapes: R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_PACKED_WEIGHTS = 2**18
"""Numbers in a weight from which on packing pays: a call takes 15 us more than PyTorch's own product."""

MIN_ROWS = 4
"""Rows that a product has at least, zeros added: four take less time than one to three, which oneDNN gives slower
kernels, of another order of additions. So a row has the same bits in any number of rows, on the CPU that was tested."""

TILED_ROWS = 32
"""Rows that a product in bfloat16 has, exactly, where the CPU multiplies tiles (AMX). For more than 32 or 36 rows
oneDNN has other kernels there, of another order of additions. One row takes as long as 32, which wait for weights."""


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


@cache
def _has_tiles() -> bool:
    # an older PyTorch does not say; there rows may differ by rounding
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16", False))


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns x @ weight (+ bias), `[R, in]` by `[in, out]`."""
    if not weight.is_mkldnn:
        return x @ weight if bias is None else torch.addmm(bias, x, weight)
    linear = torch.ops.mkldnn._linear_pointwise
    return _multiply_parts(lambda part: linear(part, weight, bias, "none", [], ""), x)


def multiply_and_add(residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns residual + x @ weight (+ bias), with the sum inside the product."""
    if not weight.is_mkldnn:
        return torch.addmm(residual if bias is None else residual + bias, x, weight)
    linear = torch.ops.mkldnn._linear_pointwise.binary
    return _multiply_parts(lambda part, before: linear(part, before, weight, bias, "add"), x, residual)


def _multiply_parts(product: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Returns the product of rows, in parts of those numbers of rows for which a row has the same bits."""
    count = len(rows[0])
    if rows[0].dtype != torch.bfloat16 or not _has_tiles():
        return product(*(_fill_rows(each, MIN_ROWS) for each in rows))[:count]
    parts = [
        product(*(_fill_rows(each[at : at + TILED_ROWS], TILED_ROWS) for each in rows))
        for at in range(0, max(count, 1), TILED_ROWS)
    ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:count]


def _fill_rows(x: Tensor, least: int) -> Tensor:
    return x if len(x) >= least else F.pad(x, (0, 0, 0, least - len(x)))
