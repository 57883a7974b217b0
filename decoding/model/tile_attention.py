"""Computes the attention of layers whose keys and values are of bfloat16 in tiles (see `tile_kernels`).

Queries and probabilities are rounded to bfloat16, sums are float32. Keys are taken 32 at a time from position 0 on,
whether they are shared, a token's own or of draft nodes, so that a token has the same bits in every batch. Keys that
all tokens of a group have in common are packed into tiles once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from decoding.compiled import compiled_in_place
from decoding.model.compiled_attention import MAX_GATHERED, Numbers, gather_queries
from decoding.model.panel_products import ZERO, Ints
from decoding.model.panels import Floats, Panels, round_up
from decoding.tile_kernels import (
    ROUNDED,
    TILE,
    TILE_DEPTH,
    begin_tiles,
    end_tiles,
    multiply_tiles,
    round_numbers,
)
from decoding.tile_packing import pack_keys, pack_values
from decoding.vector_kernels import exponentiate

if TYPE_CHECKING:
    from decoding.model.backend import Records
    from decoding.model.compiled_layers import StackShape


def size_packed(shape: StackShape, capacity: int) -> int:
    """Returns the numbers of bfloat16 that a thread packs where a row of scores has room for `capacity`."""
    return round_up(capacity) * (2 * shape.head + TILE) + TILE * shape.head


@compiled_in_place
def attend_in_tiles(
    thread: int, num_threads: int, shape: StackShape, rows: Ints, first: int, end: int, q: Floats, kv: Numbers,
    layer_at: int, num_slots: int, key_slots: Ints, extra_slots: Ints, keys_T: Records, zeros: Floats,
    tile: Floats, scores: Floats, capacity: int, slots: Ints, panels: Panels, out: Floats,
) -> None:  # fmt: skip
    """Computes this thread's part of the attention of tokens `rows[first:end]`: `[end - first, H * D]`.

    *Mutates* `tile`, `scores`, `slots` and `panels`.
    """
    per_kv = shape.num_heads // shape.num_kv_heads
    num_queries = (end - first) * per_kv
    # whole tokens where they fit: what a token alone reads is packed for each part of its queries
    most = min(max(MAX_GATHERED // per_kv, 1) * per_kv, MAX_GATHERED)
    most = min(most, max(num_queries * shape.num_kv_heads // num_threads, 1))
    part = 0
    for head in range(shape.num_kv_heads):
        kv_at = layer_at + head * num_slots * 2 * shape.head
        query = packed = ZERO  # first keys of this token that are in `panels`
        token = rows[first]
        while query < num_queries:
            size, common = gather_queries(shape, rows, first, query, min(most, num_queries - query), keys_T)
            next_token = rows[first + query // per_kv]
            for t in range(token + 1, next_token + 1):
                packed = min(packed, keys_T[t].common)
            token = next_token
            part += 1
            if part % num_threads == thread:
                packed = _attend_together(
                    shape, rows, first, query, size, common, packed, head, q, kv, kv_at, key_slots, extra_slots, keys_T,
                    zeros, tile, scores, capacity, slots, panels, out,
                )  # fmt: skip
            query += size


@compiled_in_place
def _attend_together(
    shape: StackShape, rows: Ints, first: int, query: int, size: int, common: int, packed: int, head: int,
    q: Floats, kv: Numbers, kv_at: int, key_slots: Ints, extra_slots: Ints, keys_T: Records, zeros: Floats,
    tile: Floats, scores: Floats, capacity: int, slots: Ints, panels: Panels, out: Floats,
) -> int:  # fmt: skip
    """Computes the attention of `size` queries of one key-value head, which have their `common` first keys in common.

    Of these, the first `packed` are in `panels`. Returns how many are afterwards: whole tiles of them.
    """
    common, packed = _round_down(common), _round_down(packed)
    width, per_kv = shape.head, shape.num_heads // shape.num_kv_heads
    q_width, stride, room = shape.num_heads * width, 2 * width, _round_up(capacity)
    values_at, p_at = room * width, 2 * room * width
    q_at, o_at = p_at + room * TILE, MAX_GATHERED * width
    token = rows[first + query // per_kv]
    for begin in range(packed, common, TILE_DEPTH):
        _list_slots(keys_T, token, begin, key_slots, extra_slots, slots)
        pack_keys(kv, kv_at, slots, TILE_DEPTH, stride, width, panels, begin * width)
        values = values_at + begin * TILE_DEPTH
        pack_values(kv, kv_at + width, slots, stride, width, panels, values, room * TILE_DEPTH)
    for i in range(size):
        t = rows[first + (query + i) // per_kv]
        x_at = t * q_width + (head * per_kv + (query + i) % per_kv) * width
        for d in range(0, width, TILE_DEPTH):
            round_numbers(q, x_at + d, panels, q_at + d * TILE + i * TILE_DEPTH)
    begin_tiles(panels, size)
    for begin in range(0, common, TILE_DEPTH):
        multiply_tiles(
            ROUNDED, panels, q_at, width, panels, begin * width, zeros, ZERO, ZERO, scores, begin, capacity
        )  # fmt: skip
    _score_rest(
        shape, rows, first, query, size, common, kv, kv_at, key_slots, extra_slots, keys_T, zeros, scores, capacity,
        slots, panels, q_at,
    )  # fmt: skip
    for i in range(size):
        t = rows[first + (query + i) // per_kv]
        at, count = i * capacity, keys_T[t].count + keys_T[t].extra_count
        # the sum waits where the row has no score
        scores[at + capacity - 1] = exponentiate(scores, at, count)
        for key in range(count, _round_up(count)):
            scores[at + key] = np.float32(0.0)
        for key in range(0, count, TILE_DEPTH):
            round_numbers(scores, at + key, panels, p_at + key * TILE + i * TILE_DEPTH)
    begin_tiles(panels, size)
    for d in range(0, width, TILE_DEPTH):
        multiply_tiles(
            ROUNDED, panels, p_at, common, panels, values_at + d * room, zeros, ZERO, ZERO, tile, o_at + d, width
        )  # fmt: skip
    _add_rest(
        shape, rows, first, query, size, common, kv, kv_at, key_slots, extra_slots, keys_T, tile, o_at, slots, panels,
        values_at, room, p_at,
    )  # fmt: skip
    end_tiles(panels)
    for i in range(size):
        factor = np.float32(1.0) / scores[i * capacity + capacity - 1]
        y_at = ((query + i) // per_kv) * q_width + (head * per_kv + (query + i) % per_kv) * width
        for d in range(width):
            out[y_at + d] = tile[o_at + i * width + d] * factor
    return common


@compiled_in_place
def _score_rest(
    shape: StackShape, rows: Ints, first: int, query: int, size: int, common: int, kv: Numbers, kv_at: int,
    key_slots: Ints, extra_slots: Ints, keys_T: Records, zeros: Floats, scores: Floats, capacity: int,
    slots: Ints, panels: Panels, q_at: int,
) -> None:  # fmt: skip
    """Scores the keys after the `common` ones, token by token."""
    width, per_kv = shape.head, shape.num_heads // shape.num_kv_heads
    i = ZERO
    while i < size:
        t, end = rows[first + (query + i) // per_kv], _end_of_token(query, size, per_kv, i)
        count = keys_T[t].count + keys_T[t].extra_count
        begin_tiles(panels, end - i)
        for begin in range(common, count, TILE_DEPTH):
            _list_slots(keys_T, t, begin, key_slots, extra_slots, slots)
            pack_keys(kv, kv_at, slots, count - begin, 2 * width, width, panels, begin * width)
            multiply_tiles(
                ROUNDED, panels, q_at + i * TILE_DEPTH, width, panels, begin * width, zeros, ZERO, ZERO,
                scores, i * capacity + begin, capacity,
            )  # fmt: skip
        i = end


@compiled_in_place
def _add_rest(
    shape: StackShape, rows: Ints, first: int, query: int, size: int, common: int, kv: Numbers, kv_at: int,
    key_slots: Ints, extra_slots: Ints, keys_T: Records, tile: Floats, o_at: int, slots: Ints, panels: Panels,
    values_at: int, room: int, p_at: int,
) -> None:  # fmt: skip
    """Adds the values after the `common` ones, token by token."""
    width, per_kv = shape.head, shape.num_heads // shape.num_kv_heads
    i = ZERO
    while i < size:
        t, end = rows[first + (query + i) // per_kv], _end_of_token(query, size, per_kv, i)
        count = keys_T[t].count + keys_T[t].extra_count
        for begin in range(common, count, TILE_DEPTH):
            _list_slots(keys_T, t, begin, key_slots, extra_slots, slots)
            values = values_at + begin * TILE_DEPTH
            pack_values(kv, kv_at + width, slots, 2 * width, width, panels, values, room * TILE_DEPTH)
        begin_tiles(panels, end - i)
        for d in range(0, width, TILE_DEPTH):
            y_at = o_at + i * width + d
            multiply_tiles(
                ROUNDED, panels, p_at + common * TILE + i * TILE_DEPTH, _round_up(count) - common, panels,
                values_at + d * room + common * TILE_DEPTH, tile, y_at, width, tile, y_at, width,
            )  # fmt: skip
        i = end


@compiled_in_place
def _end_of_token(query: int, size: int, per_kv: int, i: int) -> int:
    """Returns where the queries of the same token as number `i` of `size` end."""
    return min(((query + i) // per_kv + 1) * per_kv - query, size)


@compiled_in_place
def _list_slots(keys_T: Records, t: int, begin: int, key_slots: Ints, extra_slots: Ints, slots: Ints) -> None:
    """Writes the slots of the 32 keys of a token from `begin` on; after its last key that one again."""
    keys = keys_T[t]
    count, last = keys.count, keys.count + keys.extra_count - 1
    for i in range(TILE_DEPTH):
        key = min(begin + i, last)
        slots[i] = key_slots[keys.start + key] if key < count else extra_slots[keys.extra_start + key - count]


@compiled_in_place
def _round_down(count: int) -> int:
    return count // TILE_DEPTH * TILE_DEPTH


@compiled_in_place
def _round_up(count: int) -> int:
    return (count + TILE_DEPTH - 1) // TILE_DEPTH * TILE_DEPTH
