"""Runs what a decoder layer does between its products as operators of PyTorch, one Triton kernel each.

They are registered for CUDA, for the CPU, where Triton's interpreter runs the kernels in tests, and for the meta
device, where a trace sees one call. With the four products and attention a layer is ten kernels.

Shapes: T rows, H query heads, K key-value heads (H = K * Q), D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoding.triton_operators import define_operator, round_to_power

SILU_COLUMNS = 1024
"""Columns of a program of `multiply_by_silu`."""
ROTATION_WARPS = 2
"""Threads of a program of `rotate_and_store`, divided by 32; it has the few heads of one key."""


def count_norm_warps(block: int) -> int:
    """Returns the threads of a program of `add_and_norm`, divided by 32: with 16 numbers each, registers suffice."""
    return min(16, max(4, block // 512))


def add_and_norm(x_TS: Tensor, delta_TS: Tensor | None, weight_S: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns `x + delta` and its RMS norm; without a delta `x` itself and its norm."""
    if delta_TS is None:
        return x_TS, torch.ops.decoding.norm(x_TS, weight_S, eps)
    total, normed = torch.ops.decoding.add_and_norm(x_TS, delta_TS, weight_S, eps)
    return total, normed


def rotate_and_store(
    qkv: Tensor,
    bias: Tensor | None,
    head_norms: tuple[Tensor, Tensor] | None,
    cos_sin_T2D: Tensor,
    slots_T: Tensor,
    kv_KPE: Tensor,
    eps: float,
) -> Tensor:
    """Returns rotated queries `[T, H, D]`. *Mutates* `kv_KPE`: rotated keys and values are written to their slots.

    qkv         `[T, (H + 2 * K) * D]`: query heads, then key heads, then value heads; the bias is not yet added
    head_norms  weights of the norm per head of queries and of keys, before the rotation
    cos_sin     float32, cos and signed sin (see `RotaryTable`) of each row's position
    """
    q_norm, k_norm = head_norms or (None, None)
    q: Tensor = torch.ops.decoding.rotate_and_store(qkv, bias, q_norm, k_norm, cos_sin_T2D, slots_T, kv_KPE, eps)
    return q


def multiply_by_silu(gate_up: Tensor) -> Tensor:
    """Returns `silu(gate) * up` of `[T, 2 * M]`, gates first: `[T, M]`."""
    out: Tensor = torch.ops.decoding.multiply_by_silu(gate_up)
    return out


def _run_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch_norm(x, None, weight, eps)[1]


def _launch_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    # here: only what launches needs Triton
    from decoding.model.layer_kernels import add_and_norm as kernel

    num_rows, size = x.shape
    assert x.is_contiguous()
    assert delta is None or (delta.is_contiguous() and delta.shape == x.shape)
    normed = torch.empty_like(x)
    total = x if delta is None else torch.empty_like(x)
    block = round_to_power(size)
    # without a delta its place holds x: the kernel does not read it
    kernel[(num_rows,)](
        x, x if delta is None else delta, weight, total, normed, eps,
        SIZE=size, BLOCK=block, HAS_DELTA=delta is not None, num_warps=count_norm_warps(block),
    )  # fmt: skip
    return total, normed


def _run_rotation(
    qkv: Tensor,
    bias: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    cos_sin: Tensor,
    slots: Tensor,
    kv: Tensor,
    eps: float,
) -> Tensor:
    from decoding.model.layer_kernels import rotate_and_store as kernel

    q = _shape_queries(qkv, bias, q_norm, k_norm, cos_sin, slots, kv, eps)
    num_rows, num_heads, head_size = q.shape
    num_kv_heads, num_slots, _ = kv.shape
    assert qkv.is_contiguous()
    assert kv.is_contiguous()
    assert cos_sin.is_contiguous()
    assert cos_sin.dtype == torch.float32
    assert (q_norm is None) == (k_norm is None)
    per_kv = num_heads // num_kv_heads
    # what is absent has the place of another tensor: the kernel does not read it
    kernel[num_rows, num_kv_heads](
        qkv, qkv if bias is None else bias, qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm,
        cos_sin, slots, q, kv, num_slots, eps,
        KV_HEADS=num_kv_heads, QUERIES=per_kv, HEAD=head_size,
        BLOCK_Q=round_to_power(per_kv), BLOCK=round_to_power(head_size // 2),
        HAS_BIAS=bias is not None, HAS_NORM=q_norm is not None, num_warps=ROTATION_WARPS,
    )  # fmt: skip
    return q


def _run_silu(gate_up: Tensor) -> Tensor:
    from decoding.model.layer_kernels import multiply_by_silu as kernel

    out = _shape_silu(gate_up)
    num_rows, size = out.shape
    assert gate_up.is_contiguous()
    kernel[num_rows, -(-size // SILU_COLUMNS)](gate_up, out, SIZE=size, BLOCK=SILU_COLUMNS)
    return out


def _shape_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


def _shape_add_and_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _shape_queries(
    qkv: Tensor,
    bias: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    cos_sin: Tensor,
    slots: Tensor,
    kv: Tensor,
    eps: float,
) -> Tensor:
    head_size = kv.shape[2] // 2
    num_heads = qkv.shape[1] // head_size - 2 * kv.shape[0]
    return qkv.new_empty((qkv.shape[0], num_heads, head_size))


def _shape_silu(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


define_operator("norm(Tensor x, Tensor weight, float eps) -> Tensor", _run_norm, _shape_norm)
define_operator(
    "add_and_norm(Tensor x, Tensor delta, Tensor weight, float eps) -> (Tensor, Tensor)",
    _launch_norm,
    _shape_add_and_norm,
)
define_operator(
    "rotate_and_store(Tensor qkv, Tensor? bias, Tensor? q_norm, Tensor? k_norm, Tensor cos_sin, Tensor slots, "
    "Tensor(a!) kv, float eps) -> Tensor",
    _run_rotation,
    _shape_queries,
)
define_operator("multiply_by_silu(Tensor gate_up) -> Tensor", _run_silu, _shape_silu)
