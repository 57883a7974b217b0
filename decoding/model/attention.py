"""Attention of packed rows over paged K and V, reading what rows share once.

For each block (see `decoding.model.backend.AttentionBlock`): a dense product of all rows of a group with the
group's shared keys, a padded product of each sequence's rows with its private keys, one softmax over both.

Shapes: T rows, H query heads, K key-value heads (H = K * Q), D head size, E = 2 * D (a key and its value side
by side, so that one gather fetches both); G groups x B sequences = N, R rows each, S shared and P private keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoding.model.backend import AttentionBlock

_HIDDEN = -1e30  # finite, so that a row of padding is harmless; exp() of it is exactly 0


@dataclass(frozen=True)
class PlacedBlock:
    """An attention block on the model's device, prepared once per forward pass and used by every layer."""

    first: int
    count: int
    groups: int
    sequences: int
    rows: int
    shared: slice | Tensor | None  # a run of pages, their numbers `[G * S]`, or nothing shared
    shared_bias: Tensor | None  # `[K * G, 1, S]`, None when every key counts
    private_NP: Tensor
    private_bias: Tensor | None  # `[K * N, R * Q, P]`
    gather: Tensor | None  # packed row of each padded place `[N * R]`
    kept: Tensor | None


def place(
    block: AttentionBlock, *, kv_heads: int, queries_per_kv: int, device: torch.device, dtype: torch.dtype
) -> PlacedBlock:
    """Copies a block to the device and turns its masks into additive ones."""
    sequences, rows, _ = block.visible_NRP.shape
    groups, shared_length = block.shared_GS.shape

    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    def bias(visible: np.ndarray) -> Tensor:
        return torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~put(visible), _HIDDEN)

    shared_bias = private_bias = None
    if (block.shared_len_G < shared_length).any():
        counts_GS = np.arange(shared_length) < block.shared_len_G[:, None]
        shared_bias = bias(counts_GS)[:, None].repeat(kv_heads, 1, 1)
    if not block.visible_NRP.all():
        per_row = bias(block.visible_NRP).repeat_interleave(queries_per_kv, dim=1)
        private_bias = per_row.repeat(kv_heads, 1, 1)
    gather = None
    if block.kept is not None:
        gather_NR = np.full(sequences * rows, block.first, dtype=np.int64)
        gather_NR[block.kept] = np.arange(block.first, block.first + block.count)
        gather = put(gather_NR)
    return PlacedBlock(
        first=block.first,
        count=block.count,
        groups=groups,
        sequences=sequences,
        rows=rows,
        shared=_shared_pages(block, put),
        shared_bias=shared_bias,
        private_NP=put(block.private_NP.reshape(-1)),
        private_bias=private_bias,
        gather=gather,
        kept=None if block.kept is None else put(block.kept),
    )


def _shared_pages(block: AttentionBlock, put: Callable[[np.ndarray], Tensor]) -> slice | Tensor | None:
    groups, length = block.shared_GS.shape
    if length == 0:
        return None
    pages = block.shared_GS[0]
    if groups == 1 and pages[-1] - pages[0] == length - 1 and (np.diff(pages) == 1).all():
        return slice(int(pages[0]), int(pages[-1]) + 1)  # pages in a row are read in place
    return put(block.shared_GS.reshape(-1))


def attend(q_THD: Tensor, kv_KPE: Tensor, blocks: Sequence[PlacedBlock], scale: float) -> Tensor:
    """Attention output `[T, H * D]`; softmax in float32 at least. `kv_KPE`: a layer of the pool, this pass included."""
    if len(blocks) == 1:
        return _attend_block(q_THD, kv_KPE, blocks[0], scale)
    return torch.cat([_attend_block(q_THD, kv_KPE, block, scale) for block in blocks])


def _attend_block(q_THD: Tensor, kv_KPE: Tensor, block: PlacedBlock, scale: float) -> Tensor:
    kv_heads, _, width = kv_KPE.shape
    head = width // 2
    n, g, r = block.sequences, block.groups, block.rows
    if block.gather is not None:
        q_THD = q_THD.index_select(0, block.gather)
    elif block.count != q_THD.shape[0]:
        q_THD = q_THD[block.first : block.first + block.count]
    q_KTQD = q_THD.view(n * r, kv_heads, -1, head).transpose(0, 1).contiguous()
    per_kv = q_KTQD.shape[2]

    private = kv_KPE.index_select(1, block.private_NP).view(kv_heads * n, -1, width)
    own_q = q_KTQD.view(kv_heads * n, r * per_kv, head)
    scores = _scores(own_q, private[..., :head], block.private_bias, scale)
    if block.shared is None:
        out = torch.bmm(_softmax(scores), private[..., head:])
    else:
        if isinstance(block.shared, slice):
            shared = kv_KPE[:, block.shared]
        else:
            shared = kv_KPE.index_select(1, block.shared).view(kv_heads * g, -1, width)
        length = shared.shape[1]
        group_q = q_KTQD.view(kv_heads * g, -1, head)
        common = _scores(group_q, shared[..., :head], block.shared_bias, scale)
        weights = _softmax(torch.cat([common.view(kv_heads * n, r * per_kv, length), scores], dim=-1))
        out = torch.bmm(weights[..., length:], private[..., head:])
        common = weights.view(kv_heads * g, group_q.shape[1], -1)[..., :length]
        out = torch.baddbmm(out.view(group_q.shape), common, shared[..., head:])
    rows = out.view(kv_heads, n * r, per_kv * head).transpose(0, 1).reshape(n * r, -1)
    return rows if block.kept is None else rows.index_select(0, block.kept)


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    if bias is None:
        # beta=0 ignores the first argument, so scale and product are one operation
        return torch.baddbmm(q.new_empty(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=scale)
    return torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale)


def _softmax(scores: Tensor) -> Tensor:
    wide = torch.promote_types(scores.dtype, torch.float32)
    return scores.softmax(-1, dtype=wide).to(scores.dtype)
