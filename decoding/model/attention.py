"""Computes attention of packed tokens over slots of K and V; keys that sequences share are read once per group.

For each block (see `decoding.model.backend.AttentionBlock`): a dense product of all rows of a group with the
group's shared keys, a padded product of each sequence's rows with its private keys, one softmax over both.

Shapes: T rows, H query heads, K key-value heads (H = K * Q), D head size, E = 2 * D (a key and its value side
by side, so that one gather fetches both); G groups x B sequences = N, R rows each, S shared and P private keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.kv.slots import pad_slots
from decoding.model.attention_recorder import AttentionRecorder
from decoding.model.backend import AttentionBlock, Bools

Array = npt.NDArray[np.int64] | Bools

# Finite, because a padding row masks every key and softmax of all -inf would be NaN; exp() of it is exactly 0.
_MASKED = -1e30


class LayerAttention(Protocol):
    """Attention of one batch, the same for every layer: over blocks here, over segments in `segment_attention`."""

    def attend(self, q_THD: Tensor, kv_KPE: Tensor) -> Tensor:
        """Returns the output `[T, H * D]`. `kv_KPE`: a layer of the pool, which has the K and V of this pass."""
        ...


@dataclass(frozen=True)
class DeviceBlock:
    """An attention block on the model's device, prepared once per forward pass and used by every layer.

    shared        a run of slots, their numbers `[G * S]`, or None when nothing is shared
    shared_bias   `[K * G, 1, S]`, added to the scores; None when every shared key is visible
    private_bias  `[K * N, R * Q, P]`; None when every private key is visible
    gather        the packed token of each padded row `[N * R]`; None when no row is padding
    """

    first: int
    count: int
    num_groups: int
    num_sequences: int
    num_rows: int
    shared: slice | Tensor | None
    shared_bias: Tensor | None
    private_NP: Tensor
    private_bias: Tensor | None
    gather: Tensor | None
    real_rows: Tensor | None

    @classmethod
    def from_block(
        cls, block: AttentionBlock, *, num_kv_heads: int, queries_per_kv: int, device: torch.device, dtype: torch.dtype
    ) -> DeviceBlock:
        """Copies a block to the device and turns its boolean masks into additive ones."""
        num_sequences, num_rows, _ = block.visible_NRU.shape
        shared_GS, visible_NRP = pad_slots(block.shared), block.find_visible()
        num_groups, num_shared = shared_GS.shape

        def to_device(array: Array) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

        def make_bias(visible: Bools) -> Tensor:
            return torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~to_device(visible), _MASKED)

        shared_bias = private_bias = None
        shared_len_G = np.array([len(slots) for slots in block.shared])
        if (shared_len_G < num_shared).any():
            visible_GS = np.arange(num_shared) < shared_len_G[:, None]
            # repeat, not repeat_interleave: KV heads are the outer axis of `[K * G]`, in the scores below as well
            shared_bias = make_bias(visible_GS)[:, None].repeat(num_kv_heads, 1, 1)
        if not visible_NRP.all():
            # the Q queries of a row follow each other in `[R * Q]` and see the same keys
            per_query = make_bias(visible_NRP).repeat_interleave(queries_per_kv, dim=1)
            private_bias = per_query.repeat(num_kv_heads, 1, 1)
        gather = None
        if block.real_rows is not None:
            # padding rows repeat the block's first token; their output is dropped through `real_rows`
            gather_NR = np.full(num_sequences * num_rows, block.first, dtype=np.int64)
            gather_NR[block.real_rows] = np.arange(block.first, block.first + block.count)
            gather = to_device(gather_NR)
        return cls(
            first=block.first,
            count=block.count,
            num_groups=num_groups,
            num_sequences=num_sequences,
            num_rows=num_rows,
            shared=_find_shared_run(shared_GS) or (to_device(shared_GS.reshape(-1)) if num_shared else None),
            shared_bias=shared_bias,
            private_NP=to_device(pad_slots(block.private).reshape(-1)),
            private_bias=private_bias,
            gather=gather,
            real_rows=None if block.real_rows is None else to_device(block.real_rows),
        )


@dataclass(frozen=True)
class BlockAttention:
    """The blocks of a batch on the model's device, used by every layer."""

    blocks: Sequence[DeviceBlock]
    scale: float
    recorder: AttentionRecorder | None = None

    def attend(self, q_THD: Tensor, kv_KPE: Tensor) -> Tensor:
        """See `LayerAttention`."""
        return attend_blocks(q_THD.contiguous(), kv_KPE, self.blocks, self.scale, self.recorder)


def _find_shared_run(shared_GS: Array) -> slice | None:
    """Returns the shared slots as a slice where they are consecutive, so that they are read without a copy."""
    num_groups, length = shared_GS.shape
    if num_groups != 1 or length == 0:
        return None
    slots = shared_GS[0]
    # the first test is cheap and refuses nearly all others
    if slots[-1] - slots[0] != length - 1 or not (np.diff(slots) == 1).all():
        return None
    return slice(int(slots[0]), int(slots[-1]) + 1)


def attend_blocks(
    q_THD: Tensor,
    kv_KPE: Tensor,
    blocks: Sequence[DeviceBlock],
    scale: float,
    recorder: AttentionRecorder | None = None,
) -> Tensor:
    """Returns the output `[T, H * D]`, softmax in float32 at least. `kv_KPE`: a layer of the pool, after this pass."""
    outputs = []
    for number, block in enumerate(blocks):
        out, weights = _attend_block(q_THD, kv_KPE, block, scale)
        if recorder is not None:
            recorder.add_weights(number, weights, block.num_sequences, block.num_rows)
        outputs.append(out)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_block(q_THD: Tensor, kv_KPE: Tensor, block: DeviceBlock, scale: float) -> tuple[Tensor, Tensor]:
    """Returns the output of a block's tokens, and the weights `[K * N, R * Q, S + P]`."""
    kv_heads, _, width = kv_KPE.shape
    head = width // 2
    n, g, r = block.num_sequences, block.num_groups, block.num_rows
    # padded rows in block order, else the block's own run of the batch, else the batch as it is
    if block.gather is not None:
        q_THD = q_THD.index_select(0, block.gather)
    elif block.count != q_THD.shape[0]:
        q_THD = q_THD[block.first : block.first + block.count]
    q_KTQD = q_THD.view(n * r, kv_heads, -1, head).transpose(0, 1).contiguous()
    per_kv = q_KTQD.shape[2]

    private = kv_KPE.index_select(1, block.private_NP).view(kv_heads * n, -1, width)
    private_q = q_KTQD.view(kv_heads * n, r * per_kv, head)
    scores = _attention_scores(private_q, private[..., :head], block.private_bias, scale)
    if block.shared is None:
        weights = _softmax_in_float32(scores)
        out = torch.bmm(weights, private[..., head:])
    else:
        if isinstance(block.shared, slice):
            shared = kv_KPE[:, block.shared]
        else:
            shared = kv_KPE.index_select(1, block.shared).view(kv_heads * g, -1, width)
        length = shared.shape[1]
        group_q = q_KTQD.view(kv_heads * g, -1, head)
        common = _attention_scores(group_q, shared[..., :head], block.shared_bias, scale)
        # one softmax over both: shared keys first, as in `weights[..., length:]` below
        weights = _softmax_in_float32(torch.cat([common.view(kv_heads * n, r * per_kv, length), scores], dim=-1))
        out = torch.bmm(weights[..., length:], private[..., head:])
        common = weights.view(kv_heads * g, group_q.shape[1], -1)[..., :length]
        # private part first, shared part added to it: the order of the sum fixes the last bits
        out = torch.baddbmm(out.view(group_q.shape), common, shared[..., head:])
    rows = out.view(kv_heads, n * r, per_kv * head).transpose(0, 1).reshape(n * r, -1)
    return rows if block.real_rows is None else rows.index_select(0, block.real_rows), weights


def _attention_scores(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    if bias is None:
        # beta=0 ignores the first argument, so scale and product are one operation
        return torch.baddbmm(q.new_empty(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=scale)
    return torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale)


def _softmax_in_float32(scores: Tensor) -> Tensor:
    wide = torch.promote_types(scores.dtype, torch.float32)
    return scores.softmax(-1, dtype=wide).to(scores.dtype)
