"""Computes the attention of layers over keys and values in their slots, in compiled code.

Sums over keys run in the order of positions, whatever keys are shared and whichever are of draft nodes. Where keys and
values are of bfloat16, queries are rounded to it, and values are widened. A CPU with tiles has `tile_attention` for
those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from decoding.attention_kernels import QUERIES, add_values, score_keys
from decoding.compiled import compiled_in_place
from decoding.model.panel_products import ZERO, Ints
from decoding.model.panels import Floats
from decoding.vector_kernels import copy_numbers, exponentiate

if TYPE_CHECKING:
    from decoding.model.backend import Records
    from decoding.model.compiled_layers import StackShape

Numbers = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
"""K and V: float32, or bfloat16 as 16 bits."""

SCORES_PADDING = 40
"""Numbers of a row of scores beyond those of its keys: what whole vectors write too many, and a sum at the end."""

MAX_GATHERED = 16  # queries that read a block of keys one after the other; a multiple of QUERIES
_BLOCK = 32  # keys of a block: with their values 16 KB for a head of 64 numbers, which the nearest cache holds


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
