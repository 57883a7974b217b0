"""Three Triton kernels for what a decoder layer does between its products: norms, rotation, activation.

Numbers are computed in float32 and rounded where they are written. A row's result has the same bits in every batch: a
program has one row, or a part of it at fixed columns.

Sizes of the model are constants of the compiled kernel. Of a size that is no power of two the last columns of a block
are not read.

Imports triton: import this module only where these kernels run.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_and_norm(
    x, delta, weight, total, normed, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, HAS_DELTA: tl.constexpr,
):  # fmt: skip
    """Writes one row of `x + delta` and its RMS norm (Zhang and Sennrich, arXiv 1910.07467); grid (T,).

    All are `[T, SIZE]`, rows side by side; `weight` is `[SIZE]`. Without a delta the norm is that of x, and `total` is
    not written. The norm is that of the sum as it is written, which may be rounded.
    """
    column = tl.arange(0, BLOCK)
    is_column = column < SIZE
    at = tl.program_id(0).to(tl.int64) * SIZE + column
    values = tl.load(x + at, mask=is_column, other=0.0).to(tl.float32)
    if HAS_DELTA:
        added = (values + tl.load(delta + at, mask=is_column, other=0.0).to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + at, added, mask=is_column)
        values = added.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / SIZE + eps)
    factor = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(normed + at, (values * scale * factor).to(normed.dtype.element_ty), mask=is_column)


@triton.jit
def _load_halves(pointer, head, HEAD: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr):
    """Returns both halves of the numbers of heads, each float32 `[HEADS, BLOCK]`; `head` has HEADS numbers of heads."""
    half: tl.constexpr = HEAD // 2
    d = tl.arange(0, BLOCK)
    at = head[:, None] * HEAD + d[None, :]
    is_d = (head[:, None] >= 0) & (d < half)[None, :]
    first = tl.load(pointer + at, mask=is_d, other=0.0).to(tl.float32)
    second = tl.load(pointer + at + half, mask=is_d, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _norm_and_rotate(
    first, second, weight, cos_sin, eps,
    HEAD: tl.constexpr, BLOCK: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Returns both halves of heads, normed if there is a weight, then rotated."""
    half: tl.constexpr = HEAD // 2
    d = tl.arange(0, BLOCK)
    is_d = d < half
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / HEAD + eps)[:, None]
        first = first * scale * tl.load(weight + d, mask=is_d, other=0.0).to(tl.float32)[None, :]
        second = second * scale * tl.load(weight + half + d, mask=is_d, other=0.0).to(tl.float32)[None, :]
    first_cos = tl.load(cos_sin + d, mask=is_d, other=0.0)[None, :]
    second_cos = tl.load(cos_sin + half + d, mask=is_d, other=0.0)[None, :]
    first_sin = tl.load(cos_sin + HEAD + d, mask=is_d, other=0.0)[None, :]
    second_sin = tl.load(cos_sin + HEAD + half + d, mask=is_d, other=0.0)[None, :]
    return first * first_cos + second * first_sin, second * second_cos + first * second_sin


@triton.jit(do_not_specialize=["num_slots"])
def rotate_and_store(
    qkv, bias, q_norm, k_norm, cos_sin, slots, q, kv, num_slots, eps,
    KV_HEADS: tl.constexpr, QUERIES: tl.constexpr, HEAD: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Writes the queries of one row and key-value head, and its key and value to their slot; grid (T, KV_HEADS).

    Queries and keys are normed per head and rotated (Su et al., arXiv 2104.09864).

    qkv      [T, (KV_HEADS * QUERIES + 2 * KV_HEADS) * HEAD], query heads, then key heads, then value heads
    bias     added to each row of qkv
    cos_sin  float32 [T, 2, HEAD], cos and signed sin of the rows' positions
    slots    int64 [T]
    q        [T, KV_HEADS * QUERIES, HEAD]
    kv       [KV_HEADS, num_slots, 2 * HEAD], a key and its value side by side
    """
    half: tl.constexpr = HEAD // 2
    heads: tl.constexpr = KV_HEADS * QUERIES
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, BLOCK)
    is_d = (d < half)[None, :]
    qkv += row * ((heads + 2 * KV_HEADS) * HEAD)
    cos_sin += row * (2 * HEAD)

    query = tl.arange(0, BLOCK_Q)
    is_query = query < QUERIES
    head = kv_head * QUERIES + query
    # a place of the block that is no head is -1: it is not read
    read_head = tl.where(is_query, head, -1)
    first, second = _load_halves(qkv, read_head, HEAD, BLOCK, BLOCK_Q)
    if HAS_BIAS:
        first_bias, second_bias = _load_halves(bias, read_head, HEAD, BLOCK, BLOCK_Q)
        first, second = first + first_bias, second + second_bias
    first, second = _norm_and_rotate(first, second, q_norm, cos_sin, eps, HEAD, BLOCK, HAS_NORM)
    at = q + (row * heads + head[:, None]) * HEAD + d[None, :]
    is_kept = is_query[:, None] & is_d
    tl.store(at, first.to(q.dtype.element_ty), mask=is_kept)
    tl.store(at + half, second.to(q.dtype.element_ty), mask=is_kept)

    one = tl.arange(0, 1)
    key, value = one + heads + kv_head, one + heads + KV_HEADS + kv_head
    first, second = _load_halves(qkv, key, HEAD, BLOCK, 1)
    first_value, second_value = _load_halves(qkv, value, HEAD, BLOCK, 1)
    if HAS_BIAS:
        first_bias, second_bias = _load_halves(bias, key, HEAD, BLOCK, 1)
        first, second = first + first_bias, second + second_bias
        first_bias, second_bias = _load_halves(bias, value, HEAD, BLOCK, 1)
        first_value, second_value = first_value + first_bias, second_value + second_bias
    first, second = _norm_and_rotate(first, second, k_norm, cos_sin, eps, HEAD, BLOCK, HAS_NORM)
    slot = kv_head.to(tl.int64) * num_slots + tl.load(slots + row)
    at = kv + slot * (2 * HEAD) + d[None, :]
    tl.store(at, first.to(kv.dtype.element_ty), mask=is_d)
    tl.store(at + half, second.to(kv.dtype.element_ty), mask=is_d)
    tl.store(at + HEAD, first_value.to(kv.dtype.element_ty), mask=is_d)
    tl.store(at + HEAD + half, second_value.to(kv.dtype.element_ty), mask=is_d)


@triton.jit
def multiply_by_silu(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Writes a part of a row of silu(gate) * up (Shazeer, arXiv 2002.05202); grid (T, parts of BLOCK columns).

    gate_up  [T, 2 * SIZE], the gate and then what it is multiplied with
    out      [T, SIZE]
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < SIZE
    at = gate_up + row * (2 * SIZE) + column
    gate = tl.load(at, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(at + SIZE, mask=is_column, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * SIZE + column, value.to(out.dtype.element_ty), mask=is_column)
