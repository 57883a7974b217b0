"""Computes attention over a plan of segments as one operator of PyTorch, `decoding::attend_segments`.

The operator launches the two kernels of `segment_kernels`, whatever the batch is made of; before the layers
`decoding::cut_items` cuts the items of the plan, once. Both are registered for CUDA, for the CPU, where Triton's
interpreter runs the kernels in tests, and for the meta device, where a trace sees one call.

Shapes: T rows, H query heads, K key-value heads (H = K * Q), D head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.model.segments import SegmentItems, SegmentPlan, SegmentTiles
from decoding.triton_operators import define_operator, has_triton, round_to_power

NUM_WARPS, NUM_STAGES = 4, 3
"""How the kernels are compiled: threads of a program / 32, and steps of its loop that are in flight."""
_SPLIT_KEYS = 256
"""Keys of a split. Short splits make many programs, which one branch with a long context needs to occupy a GPU; long
ones make few partial results, of which each row writes and reads one per split."""
_TILE_BYTES = 8192
"""Bytes of the keys that a program multiplies at a time: with more, registers spill (a test compiles the kernels)."""

PLAN_COLUMNS = len(SegmentItems._fields) + 1
CUT_BLOCK = 128
"""Splits of a program of `cut_items`."""


def explain_no_segments(device: torch.device, dtype: torch.dtype) -> str | None:
    """Returns what keeps segments from running on a device, or None where nothing does."""
    if dtype == torch.float64:
        return "its scores are float32, and the dtype is float64"
    if not has_triton():
        return "Triton is not installed (pip install 'reason-search[gpu]')"
    if device.type == "cuda":
        return None
    from triton import knobs

    if not knobs.runtime.interpret:
        return f"its kernels need a CUDA device, and the device is {device.type} (TRITON_INTERPRET=1 interprets them)"
    if dtype == torch.bfloat16:
        return "Triton's interpreter multiplies the bits of bfloat16 numbers as if they were integers"
    return None


@dataclass(frozen=True)
class KernelBlocks:
    """Sizes of the tiles of a kernel: queries, keys at a time, and the head size, each a power of two."""

    queries: int
    keys: int
    head: int

    @classmethod
    def for_heads(cls, queries_per_kv: int, head_size: int, dtype: torch.dtype) -> KernelBlocks:
        """Returns the sizes for a model: the same for every batch, so that a row's bits do not depend on the others.

        64 queries is the least that the tensor cores of sm_90 multiply with one instruction; float32 has none.
        """
        head = max(16, round_to_power(head_size))
        keys = min(64, max(16, _TILE_BYTES // (head * dtype.itemsize)))
        return cls(max(64 if dtype.itemsize == 2 else 32, round_to_power(queries_per_kv)), keys, head)


def pick_tiles(queries_per_kv: int, head_size: int, dtype: torch.dtype, *, is_aligned: bool = False) -> SegmentTiles:
    """Returns the largest items that the kernels run for a model."""
    num_rows = KernelBlocks.for_heads(queries_per_kv, head_size, dtype).queries // queries_per_kv
    return SegmentTiles(num_rows, _SPLIT_KEYS, is_aligned)


def list_arrays(plan: SegmentPlan) -> list[npt.NDArray[np.int32] | npt.NDArray[np.int64]]:
    """Returns the arrays of a plan that its device needs: items, keys, first partial results, words.

    Items are int32 `[I * 8]`, the columns of `SegmentItems` side by side, and how many splits the items have up to the
    end of each. A plan with a table has the positions of its keys there besides.
    """
    items = np.stack([*plan.items, plan.split_ends], axis=1).reshape(-1)
    positions = [] if plan.update is None else [plan.update.positions]
    return [items, plan.keys, plan.first_partial, plan.words, *positions]


def cut_items(items: Tensor, num_splits: int, split_keys: int) -> Tensor:
    """Returns `num_splits` splits of items as `list_arrays` gives them, int32 `[num_splits * 7]`.

    Those after the splits of all items have no rows.
    """
    splits: Tensor = torch.ops.decoding.cut_items(items, num_splits, split_keys)
    return splits


@dataclass(frozen=True)
class SegmentAttention:
    """The plan of a batch on the model's device, used by every layer.

    arrays  splits of the items, keys, first partial results, words
    """

    arrays: Sequence[Tensor]
    num_partials: int
    scale: float

    @classmethod
    def from_plan(cls, plan: SegmentPlan, arrays: Sequence[Tensor], scale: float) -> SegmentAttention:
        """Returns the attention of a plan whose `list_arrays` are on the device. *Mutates* the table of the plan."""
        items, keys, first_partial, words = arrays[:4]
        if plan.update is not None:
            keys = plan.update.table.write(arrays[4], keys)
        splits = cut_items(items, plan.num_splits, plan.tiles.num_keys)
        return cls([splits, keys, first_partial, words], plan.num_partials, scale)

    def attend(self, q_THD: Tensor, kv_KPE: Tensor) -> Tensor:
        """Returns the output `[T, H * D]`, scores and sums in float32. `kv_KPE`: a layer of the pool, after this pass.

        The numbers of a row of `q_THD` follow each other; rows may be any distance apart.
        """
        out: Tensor = torch.ops.decoding.attend_segments(q_THD, kv_KPE, *self.arrays, self.num_partials, self.scale)
        return out


def _run_kernels(
    q: Tensor,
    kv: Tensor,
    items: Tensor,
    keys: Tensor,
    first_partial: Tensor,
    words: Tensor,
    num_partials: int,
    scale: float,
) -> Tensor:
    # here: only this function needs Triton
    from decoding.model.segment_kernels import compute_partials, merge_partials

    num_rows, num_heads, head_size = q.shape
    num_kv_heads, num_slots, _ = kv.shape
    assert q.stride()[1:] == (head_size, 1)
    assert kv.is_contiguous()
    per_kv = num_heads // num_kv_heads
    blocks = KernelBlocks.for_heads(per_kv, head_size, q.dtype)
    means = q.new_empty((num_partials, num_heads, head_size), dtype=torch.float32)
    log_sums = q.new_empty((num_partials, num_heads), dtype=torch.float32)
    out = q.new_empty((num_rows, num_heads * head_size))
    compute_partials[len(items) // len(SegmentItems._fields), num_kv_heads](
        q, kv, items, keys, words, first_partial, means, log_sums, scale * math.log2(math.e), num_slots,
        KV_HEADS=num_kv_heads, QUERIES=per_kv, HEAD=head_size, Q_STRIDE=q.stride(0),
        BLOCK_M=blocks.queries, BLOCK_N=blocks.keys, BLOCK_D=blocks.head,
        num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    merge_partials[num_rows, num_kv_heads](
        means, log_sums, first_partial, out,
        KV_HEADS=num_kv_heads, QUERIES=per_kv, HEAD=head_size,
        BLOCK_Q=round_to_power(per_kv), BLOCK_D=blocks.head, num_warps=NUM_WARPS,
    )  # fmt: skip
    return out


def _run_cut(items: Tensor, num_splits: int, split_keys: int) -> Tensor:
    # here: only this function needs Triton
    from decoding.model.plan_kernels import cut_items as kernel

    splits = items.new_empty(num_splits * len(SegmentItems._fields))
    num_items = len(items) // PLAN_COLUMNS
    kernel[(-(-num_splits // CUT_BLOCK),)](
        items, splits, num_items, num_items.bit_length(), num_splits, SPLIT_KEYS=split_keys, BLOCK=CUT_BLOCK
    )
    return splits


def _shape_splits(items: Tensor, num_splits: int, split_keys: int) -> Tensor:
    return items.new_empty(num_splits * len(SegmentItems._fields))


def _shape_output(q: Tensor, *_: object) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[1] * q.shape[2]))


define_operator(
    "attend_segments(Tensor q, Tensor kv, Tensor items, Tensor keys, Tensor first_partial, Tensor words, "
    "int num_partials, float scale) -> Tensor",
    _run_kernels,
    _shape_output,
)
define_operator("cut_items(Tensor items, int num_splits, int split_keys) -> Tensor", _run_cut, _shape_splits)
