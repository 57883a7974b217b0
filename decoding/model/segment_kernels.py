"""Two Triton kernels of attention: partial results of work items, and the sum of each row's partial results.

A partial result is a softmax over the keys of one item: the weighted mean of the values, and the logarithm (base 2) of
the sum of weights. The queries that share a key-value head share a tile, so a key is read once for all of them, as in
grouped-query decoding kernels. Scores, weights and sums are float32; the softmax is computed online (Dao et al.,
arXiv 2205.14135), and partial results are merged as in Flash-Decoding.

Sizes of the model are constants of the compiled kernel, so that the compiler knows the alignment of every row it reads;
without that it has neither asynchronous copies nor registers enough. What changes from batch to batch is not
specialised: each new value would compile the kernel again.

Imports triton: import this module only where segments are attended to.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Finite, because the difference of two infinities is no number; 2 to this power is exactly 0.
_HIDDEN = tl.constexpr(-1e30)
# columns of `SegmentItems`, a row of 7 per item
_COLUMNS = tl.constexpr(7)
_FIRST_ROW, _NUM_ROWS = tl.constexpr(0), tl.constexpr(1)
_FIRST_KEY, _NUM_KEYS = tl.constexpr(2), tl.constexpr(3)
_CAUSAL_OFFSET, _FIRST_WORD, _ORDER = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)


@triton.jit(do_not_specialize=["num_slots"])
def compute_partials(
    q,
    kv,
    items,
    keys,
    words,
    first_partial,
    means,
    log_sums,
    log2_scale,
    num_slots,
    KV_HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD: tl.constexpr,
    Q_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Computes the partial results of one item for one key-value head; grid (items, KV_HEADS).

    q              [T, KV_HEADS * QUERIES, HEAD], rows `Q_STRIDE` numbers apart
    kv             [KV_HEADS, num_slots, 2 * HEAD], a key and its value side by side
    means          float32 [partials, KV_HEADS * QUERIES, HEAD]
    log_sums       float32 [partials, KV_HEADS * QUERIES]
    log2_scale     factor of the scores times log2(e)
    """
    item = items + tl.program_id(0) * _COLUMNS
    kv_head = tl.program_id(1)
    first_row, num_rows = tl.load(item + _FIRST_ROW), tl.load(item + _NUM_ROWS)
    first_key, num_keys = tl.load(item + _FIRST_KEY), tl.load(item + _NUM_KEYS)
    causal_offset, first_word = tl.load(item + _CAUSAL_OFFSET), tl.load(item + _FIRST_WORD)

    # a tile is rows x the QUERIES heads of this key-value head
    m = tl.arange(0, BLOCK_M)
    row = m // QUERIES
    head = kv_head * QUERIES + m % QUERIES
    is_row = row < num_rows
    d = tl.arange(0, BLOCK_D)
    is_d = d < HEAD
    q_row = (first_row + row).to(tl.int64) * Q_STRIDE + head * HEAD
    x = tl.load(q + q_row[:, None] + d[None, :], mask=is_row[:, None] & is_d[None, :], other=0.0)
    has_words = first_word >= 0
    word = tl.load(words + first_word + row, mask=is_row & has_words, other=-1)

    largest = tl.full([BLOCK_M], _HIDDEN, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mean = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    n = tl.arange(0, BLOCK_N)
    kv_of_head = kv + kv_head.to(tl.int64) * num_slots * (2 * HEAD)
    for start in range(0, num_keys, BLOCK_N):
        key = start + n
        is_key = key < num_keys
        slot = tl.load(keys + first_key + key, mask=is_key, other=0).to(tl.int64)
        pointer = kv_of_head + slot[:, None] * (2 * HEAD) + d[None, :]
        is_kept = is_key[:, None] & is_d[None, :]
        k = tl.load(pointer, mask=is_kept, other=0.0)
        v = tl.load(pointer + HEAD, mask=is_kept, other=0.0)
        scores = tl.dot(x, tl.trans(k), input_precision="ieee") * log2_scale
        is_visible = is_key[None, :] & (key[None, :] <= row[:, None] + causal_offset)
        # an item with words has at most 64 keys
        bit = (word[:, None] >> tl.minimum(key, 63)[None, :].to(tl.int64)) & 1
        is_visible = is_visible & (bit != 0)
        scores = tl.where(is_visible, scores, _HIDDEN)
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp2(largest - new_largest)
        # Where no key was visible yet, hidden ones have weight 1; the first visible one shrinks it to exactly 0.
        weights = tl.exp2(scores - new_largest[:, None])
        total = total * shrink + tl.sum(weights, 1)
        mean = tl.dot(weights.to(v.dtype), v, mean * shrink[:, None], input_precision="ieee")
        largest = new_largest

    partial = tl.load(first_partial + first_row + row, mask=is_row, other=0) + tl.load(item + _ORDER)
    at = partial.to(tl.int64) * (KV_HEADS * QUERIES) + head
    tl.store(means + at[:, None] * HEAD + d[None, :], mean / total[:, None], mask=is_row[:, None] & is_d[None, :])
    # of a row without a visible key in this item: about -1e30, which the merge shrinks to exactly 0 as well
    tl.store(log_sums + at, largest + tl.log2(total), mask=is_row)


@triton.jit
def merge_partials(
    means,
    log_sums,
    first_partial,
    out,
    KV_HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Computes the output of one row for the query heads of one key-value head; grid (T, KV_HEADS).

    Partial results are added one by one, in the order of their keys.

    out   [T, KV_HEADS * QUERIES * HEAD]
    """
    row, kv_head = tl.program_id(0), tl.program_id(1)
    query = tl.arange(0, BLOCK_Q)
    is_query = query < QUERIES
    # int64: partial results x heads x head size may pass 2 ** 31
    head = (kv_head * QUERIES + query).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    is_kept = is_query[:, None] & (d < HEAD)[None, :]
    largest = tl.full([BLOCK_Q], _HIDDEN, tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    mean = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    begin, end = tl.load(first_partial + row), tl.load(first_partial + row + 1)
    for partial in range(begin, end):
        at = partial * (KV_HEADS * QUERIES) + head
        log_sum = tl.load(log_sums + at, mask=is_query, other=_HIDDEN)
        part = tl.load(means + at[:, None] * HEAD + d[None, :], mask=is_kept, other=0.0)
        new_largest = tl.maximum(largest, log_sum)
        shrink = tl.exp2(largest - new_largest)
        weight = tl.exp2(log_sum - new_largest)
        total = total * shrink + weight
        mean = mean * shrink[:, None] + part * weight[:, None]
        largest = new_largest
    # a largest partial result has weight 1; a row without any is zeros
    result = mean / tl.maximum(total, 1.0)[:, None]
    at = (row * (KV_HEADS * QUERIES) + head)[:, None] * HEAD + d[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=is_kept)
