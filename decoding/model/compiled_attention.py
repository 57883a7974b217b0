"""Computes the attention of layers over keys and values in their slots, in compiled code, in float32.

Sums over keys run in the order of positions, whatever keys are shared and whichever are of draft nodes. Keys and values
of bfloat16 are for `tile_attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled_in_place
from decoding.model.panel_products import ZERO, Ints
from decoding.model.weight_panels import Floats
from decoding.vector_kernels import QUERIES, add_values, copy_numbers, exponentiate, score_keys

if TYPE_CHECKING:
    from decoding.model.compiled_layers import StackShape

Records = npt.NDArray[np.void]
Numbers = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
"""K and V: float32, or bfloat16 as 16 bits."""

SCORES_PADDING = 40
"""Numbers of a row of scores beyond those of its keys: what whole vectors write too many, and a sum at the end."""

MAX_GATHERED = 16  # queries that read a block of keys one after the other; a multiple of QUERIES
_BLOCK = 32  # keys of a block: with their values 16 KB for a head of 64 numbers, which the nearest cache holds

KEYS_RECORD = np.dtype([(name, np.int64) for name in ("start", "count", "extra_start", "extra_count", "common")])
"""What a token attends to: `key_slots[start : start + count]`, positions from 0 on, and then
`extra_slots[extra_start : extra_start + extra_count]`, the draft nodes among its ancestors.

common   how many of its first keys it has in common with the token before it
"""


@compiled_in_place
def list_keys(
    first: int, at: int, extra_at: int, shared_len_G: Ints, private_len_N: Ints, num_new_N: Ints,
    visible_NRU: npt.NDArray[np.bool_], row_R: Ints, key_slots: Ints, extra_slots: Ints, keys_T: Records,
) -> tuple[int, int]:  # fmt: skip
    """Fills in the keys of the tokens of one block, whose flat rows are `row_R`. *Mutates* `keys_T` and `extra_slots`.

    `key_slots` has the keys of each sequence from `at` on: those of its group, then its own. Returns the ends of what
    the block has in `key_slots` and in `extra_slots`.
    """
    num_sequences, num_rows, num_new = visible_NRU.shape
    per_group = num_sequences // len(shared_len_G)
    i, before = 0, -1
    for n in range(num_sequences):
        group = n // per_group
        shared = shared_len_G[group]
        old = shared + private_len_N[n] - num_new_N[n]
        is_first = True
        while i < len(row_R) and row_R[i] // num_rows == n:
            keys, visible = keys_T[first + i], visible_NRU[n, row_R[i] % num_rows]
            count = 0
            while count < num_new and visible[count]:
                count += 1
            keys.start, keys.count, keys.extra_start = at, old + count, extra_at
            for key in range(count, num_new):
                if visible[key]:
                    extra_slots[extra_at] = key_slots[at + old + key]
                    extra_at += 1
            keys.extra_count = extra_at - keys.extra_start
            if before != group:
                keys.common = 0
            elif is_first:
                keys.common = shared
            else:
                keys.common = min(keys_T[first + i - 1].count, keys.count)
            before, is_first = group, False
            i += 1
        at += shared + private_len_N[n]
    return at, extra_at


@compiled_in_place
def attend(
    thread: int, num_threads: int, shape: StackShape, rows: Ints, first: int, end: int, q: Floats, kv: Numbers,
    layer_at: int, num_slots: int, key_slots: Ints, extra_slots: Ints, keys_T: Records,
    tile: Floats, scores: Floats, capacity: int, out: Floats,
) -> None:  # fmt: skip
    """Computes this thread's part of the attention of tokens `rows[first:end]`: `[end - first, H * D]`.

    *Mutates* `tile` and `scores`.
    """
    num_queries = (end - first) * (shape.num_heads // shape.num_kv_heads)
    # with several threads each gets a share of every head
    most = min(MAX_GATHERED, max(num_queries // num_threads, 1))
    part = 0
    # head by head: the keys and values of one stay in the cache until all queries have read them
    for head in range(shape.num_kv_heads):
        kv_at = layer_at + head * num_slots * 2 * shape.head
        query = ZERO
        while query < num_queries:
            size, common = gather_queries(shape, rows, first, query, min(most, num_queries - query), keys_T)
            part += 1
            if part % num_threads == thread:
                _attend_together(
                    shape, rows, first, query, size, common, head, q, kv, kv_at, key_slots, extra_slots, keys_T,
                    tile, scores, capacity, out,
                )  # fmt: skip
            query += size


@compiled_in_place
def gather_queries(
    shape: StackShape, rows: Ints, first: int, query: int, most: int, keys_T: Records
) -> tuple[int, int]:
    """Returns how many queries from `query` on read keys together, and how many first keys all of them have in common.

    At most `most`; no further query joins where that would halve what they have in common.
    """
    per_kv = shape.num_heads // shape.num_kv_heads
    token = rows[first + query // per_kv]
    size, common = 1, keys_T[token].count
    while size < most:
        next_token = rows[first + (query + size) // per_kv]
        fewer = common
        for t in range(token + 1, next_token + 1):
            fewer = min(fewer, keys_T[t].common)
        if 2 * fewer < common:
            break
        token, common = next_token, fewer
        size += 1
    # a single query reads all of its keys by itself
    return size, common if size > 1 else ZERO


@compiled_in_place
def _attend_together(
    shape: StackShape, rows: Ints, first: int, query: int, size: int, common: int, head: int,
    q: Floats, kv: Numbers, kv_at: int, key_slots: Ints, extra_slots: Ints, keys_T: Records,
    tile: Floats, scores: Floats, capacity: int, out: Floats,
) -> None:  # fmt: skip
    """Computes the attention of `size` queries of one key-value head, which have their `common` first keys in common.

    *Mutates* `tile` and `scores`.
    """
    width, per_kv = shape.head, shape.num_heads // shape.num_kv_heads
    q_width, out_tile = shape.num_heads * width, MAX_GATHERED * width
    start = keys_T[rows[first + query // per_kv]].start
    for i in range(size):
        t = rows[first + (query + i) // per_kv]
        q_at = t * q_width + (head * per_kv + (query + i) % per_kv) * width
        copy_numbers(q, q_at, tile, i * width, width)
    for i in range(out_tile, out_tile + size * width):
        tile[i] = np.float32(0.0)
    for begin in range(0, common, _BLOCK):
        # these few keys stay in the nearest cache until all queries have read them
        count = min(_BLOCK, common - begin)
        for i in range(0, size, QUERIES):
            score_keys(
                QUERIES if i + 1 < size else 1, tile, i * width, width, kv, kv_at, key_slots, start + begin, count,
                scores, i * capacity + begin, capacity,
            )  # fmt: skip
    for i in range(size):
        t = rows[first + (query + i) // per_kv]
        at, count, extra = i * capacity, keys_T[t].count, keys_T[t].extra_count
        if count > common:
            score_keys(
                1, tile, i * width, width, kv, kv_at, key_slots, keys_T[t].start + common, count - common,
                scores, at + common, capacity,
            )  # fmt: skip
        if extra:
            score_keys(
                1, tile, i * width, width, kv, kv_at, extra_slots, keys_T[t].extra_start, extra,
                scores, at + count, capacity,
            )  # fmt: skip
        # the sum waits where the row has no score
        scores[at + capacity - 1] = exponentiate(scores, at, count + extra)
    for begin in range(0, common, _BLOCK):
        count = min(_BLOCK, common - begin)
        for i in range(0, size, QUERIES):
            add_values(
                QUERIES if i + 1 < size else 1, scores, i * capacity + begin, capacity, kv, kv_at, width, key_slots,
                start + begin, count, tile, out_tile + i * width,
            )  # fmt: skip
    for i in range(size):
        t = rows[first + (query + i) // per_kv]
        at, count, extra = i * capacity, keys_T[t].count, keys_T[t].extra_count
        o_at = out_tile + i * width
        if count > common:
            add_values(
                1, scores, at + common, capacity, kv, kv_at, width, key_slots, keys_T[t].start + common,
                count - common, tile, o_at,
            )  # fmt: skip
        if extra:
            add_values(
                1, scores, at + count, capacity, kv, kv_at, width, extra_slots, keys_T[t].extra_start,
                extra, tile, o_at,
            )  # fmt: skip
        factor = np.float32(1.0) / scores[at + capacity - 1]
        y_at = ((query + i) // per_kv) * q_width + (head * per_kv + (query + i) % per_kv) * width
        for d in range(width):
            out[y_at + d] = tile[o_at + d] * factor
