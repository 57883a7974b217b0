"""Runs the layers of a decoder over packed tokens in one compiled call; K and V are read and written in their slots.

Shapes: T packed tokens, W tokens whose output is needed, L layers.

Each number depends on the tokens before it alone, to the last bit: not on the other tokens of the batch, on how a
prompt was cut, on a draft, on which keys are shared, or on the threads. Sums over keys run in the order of positions,
and a product's sum in the order of its depth (see `decoding.vector_kernels`).

Widths are multiples of 32, filled up with zeros. Matrices are stored in panels of 32 columns (see `weight_panels`).

Rows go through a layer in parts. Threads share the columns of every product of a part, and meet before and after it;
or each takes whole parts, of which it needs nothing from the others but the keys and values of the layer. The latter
reads all weights for each part: it pays where they stay in the cache, or a part has many rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from decoding.compiled import compiled_in_place
from decoding.cpu_features import has_tiles
from decoding.helper_calls import (
    RECORD_SIZE,
    call_helpers,
    dismiss_helpers,
    end_call,
    note_arguments,
    view_arguments,
    wait_for_call,
)
from decoding.model.backend import Records
from decoding.model.compiled_attention import MAX_GATHERED, SCORES_PADDING, Numbers, attend
from decoding.model.key_lists import KEYS_RECORD
from decoding.model.panel_products import ZERO, Ints, multiply_in_team, multiply_share, share_columns, size_rounded
from decoding.model.panels import Floats, Panels
from decoding.model.row_kernels import copy_row, normalise, rotate_heads
from decoding.model.tile_attention import attend_in_tiles
from decoding.team_barrier import end_part, new_barrier, take_part, wait_for_parts, wait_for_team
from decoding.tile_kernels import TILE, TILE_DEPTH, is_tiled
from decoding.vector_kernels import copy_numbers, gate_values

_CHUNK = 128
"""Most rows that go through a layer together. Of more each part reads all weights again; but the numbers of all must
stay in the cache: 1,000 rows of float32 take a tenth longer in parts of 256."""

_FEW = 16  # rows of a thread up to which it takes one part: smaller ones take longer for each row


class StackShape(NamedTuple):
    """The sizes of a decoder. `hidden`, `mlp` and `head` are the sizes in memory, multiples of 32.

    head_size   numbers of a head before it is filled up
    num_pieces  of a row of a product, see `panel_products.multiply`
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    hidden_size: int
    head_size: int
    hidden: int
    head: int
    mlp: int
    num_pieces: int
    eps: float
    scale: float


# Arrays of records for compiled code: Numba takes ten times as long to find the type of a named tuple, at each call.
SHAPE_RECORD = np.dtype([(name, float if name in ("eps", "scale") else np.int64) for name in StackShape._fields])
LAYER_RECORD = np.dtype(
    [
        (part, np.int64)
        for part in (
            "attention_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "out_bias",
            "mlp_norm", "gate_up", "gate_up_bias", "down", "down_bias",
        )
    ]
)  # fmt: skip
"""Where the parts of a layer begin, matrices in one array and vectors in another; -1: there is no such part."""


def compile_parts() -> None:
    """Compiles the parts of `run_layers` that take longest, which are then found when the others are compiled, and the
    head.

    They are those of a model in float32 with weights of bfloat16, as the bundled ones are.
    """
    ints, floats, keys = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.float32), np.zeros(1, dtype=KEYS_RECORD)
    shape: Any = np.ones(1, dtype=SHAPE_RECORD)[0]
    attend(0, 1, shape, ints, 0, 0, floats, floats, 0, 1, ints, ints, keys, floats, floats, 1, floats)
    panels: Panels = np.zeros(1, dtype=np.int16) if has_tiles() else np.zeros(1, dtype=np.uint16)
    multiply_share(0, 1, floats, 0, 0, 1, panels, 0, 0, 0, 0, 0, floats, 0, floats, 0, floats, panels)
    multiply_in_team(0, 1, new_barrier(), floats, 0, 1, panels, 0, 0, floats, floats, panels)


@compiled_in_place
def size_work(
    shapes: Records, matrices: Panels, num_threads: int, num_groups: int, positions_T: Ints, keys_T: Records
) -> tuple[int, int, int, int, int, int]:
    """Returns the numbers of `run_layers` in memory as `size_rows` does, those of a row of scores and of rounded rows,
    and the largest position."""
    capacity = largest = ZERO
    for t in range(len(positions_T)):
        largest = max(largest, positions_T[t])
    for t in range(len(keys_T)):
        capacity = max(capacity, keys_T[t].count + keys_T[t].extra_count + SCORES_PADDING)
    size, of_thread, of_group = size_rows(shapes, num_threads, num_groups, len(positions_T), capacity)
    of_rounded = size_rounded_rows(shapes, matrices, num_groups, len(positions_T))
    return size, of_thread, of_group, capacity, of_rounded, largest


@compiled_in_place
def size_rows(
    shapes: Records, num_threads: int, num_groups: int, num_tokens: int, capacity: int
) -> tuple[int, int, int]:
    """Returns the numbers of `run_layers` in memory, all of them, those of a thread and those of a group, for rows of
    scores this long.

    Fewer rows may need more of all: see `size_most_rows`.
    """
    shape = shapes[0]
    together = _size_part(num_tokens, num_groups)
    of_thread = together * shape.hidden + 2 * MAX_GATHERED * shape.head + MAX_GATHERED * capacity
    of_group = together * (shape.hidden + _wide_size(shape))
    of_all = num_tokens * (shape.hidden + shape.num_heads * shape.head)
    return of_all + num_threads * of_thread + num_groups * of_group, of_thread, of_group


@compiled_in_place
def size_most_rows(shapes: Records, num_tokens: int, capacity: int) -> int:
    """Returns the numbers of `run_layers` in memory that any pass of up to so many rows needs, with one thread."""
    # parts are smaller where they are one more
    whole_parts = num_tokens // _CHUNK * _CHUNK
    size, _, _ = size_rows(shapes, 1, 1, num_tokens, capacity)
    size_of_parts, _, _ = size_rows(shapes, 1, 1, whole_parts, capacity)
    return max(size, size_of_parts)


@compiled_in_place
def size_rounded_rows(shapes: Records, matrices: Panels, num_groups: int, num_tokens: int) -> int:
    """Returns the room of one thread for rounded rows: in passes of so many rows where threads take parts, else in any
    of up to so many.
    """
    shape = shapes[0]
    depth = max(shape.hidden_size, shape.num_heads * shape.head, shape.mlp)
    together = _size_part(num_tokens if num_groups > 1 else min(num_tokens, _CHUNK), num_groups)
    return size_rounded(together, shape.num_pieces, matrices, depth)


@compiled_in_place
def _count_parts(num_rows: int, num_groups: int) -> int:
    """Returns in how many parts rows go through a layer: each group takes as many, unless one of them comes late."""
    num_parts = max((num_rows + _CHUNK - 1) // _CHUNK, 1)
    if num_groups == 1:
        return num_parts
    of_group = (num_parts + num_groups - 1) // num_groups
    return num_groups * (max(of_group, 2) if num_rows > _FEW * num_groups else of_group)


@compiled_in_place
def _size_part(num_rows: int, num_groups: int) -> int:
    """Returns the rows of the largest part, filled up to whole tiles."""
    num_parts = _count_parts(num_rows, num_groups)
    return (num_rows + num_parts * TILE - 1) // (num_parts * TILE) * TILE


@compiled_in_place
def _find_part(part: int, num_parts: int, num_rows: int, matrices: Panels) -> tuple[int, int]:
    """Returns the first row of a part, and the end of its rows: parts as equal as possible, of whole tiles if any."""
    unit = TILE if is_tiled(matrices) else 1
    units = (num_rows + unit - 1) // unit
    first, end = part * units // num_parts * unit, (part + 1) * units // num_parts * unit
    return min(first, num_rows), min(end, num_rows)


@compiled_in_place
def _wide_size(shape: StackShape) -> int:
    """Numbers of a row of what is between two products: query, key and value, attention, or gate, up and both."""
    return max((shape.num_heads + 2 * shape.num_kv_heads) * shape.head, 3 * shape.mlp)


@compiled_in_place
def run_layers(
    thread: int, num_threads: int, barrier: Ints, states: Ints, record: Ints, num_groups: int,
    shapes: Records, layers: Records, matrices: Panels, vectors: Floats, embedding: Floats, cos_sin: Floats,
    tokens_T: Ints, positions_T: Ints, slots_T: Ints, output_indices_W: Ints,
    every_T: Ints, key_slots: Ints, extra_slots: Ints, keys_T: Records, kv: Numbers,
    work: Floats, of_thread: int, of_group: int, capacity: int, packed: Panels | None, slots: Ints, zeros: Floats,
    rounded: Panels, hidden: Floats,
) -> None:  # fmt: skip
    """Runs one thread's share of all layers; `hidden` becomes the normed hidden states `[W, hidden]`.

    *Mutates* the pool `kv` at `slots_T`, and `work`, which all threads have together. Nothing raises here: the other
    threads would wait for ever.

    Where there are `states`, thread 0 calls helpers (see `helper_calls`). The others wait for calls, and run their
    shares of passes that `record` describes: of their own arguments only the types count.

    num_groups  of threads, of which each takes parts of the rows: one of all threads, or as many as threads
    shapes      one record
    of_thread   and `of_group` and `capacity`, the sizes of `work`: as `size_work` says
    every_T     numbers of all tokens
    packed      where attention packs keys and values of bfloat16 into tiles; None where it reads them as they are
    slots       room for 32 numbers of each thread
    zeros       as many as a product has columns
    rounded     room for rows of each thread, as `size_rounded_rows` says; that of each begins with a line of the cache
    """
    is_called, calls = len(states) > 0 and thread > 0, len(states) > 0 and thread == 0
    arguments = (
        num_threads, barrier, num_groups, shapes, layers, matrices, vectors, embedding, cos_sin,
        tokens_T, positions_T, slots_T, output_indices_W, every_T, key_slots, extra_slots, keys_T, kv,
        work, of_thread, of_group, capacity, slots, zeros, rounded, hidden,
    )  # fmt: skip
    # apart, since of an argument that is never set anew Numba knows whether it is None
    tiles: Any = (packed,)
    of_tiles = record[RECORD_SIZE:]
    if calls:
        note_arguments(record, arguments)
        note_arguments(of_tiles, tiles)
        call_helpers(states, num_threads - 1)
    while True:
        if is_called:
            wait_for_call(states, thread - 1)
            tiles = view_arguments(of_tiles, tiles)
            (
                num_threads, barrier, num_groups, shapes, layers, matrices, vectors, embedding, cos_sin,
                tokens_T, positions_T, slots_T, output_indices_W, every_T, key_slots, extra_slots, keys_T, kv,
                work, of_thread, of_group, capacity, slots, zeros, rounded, hidden,
            ) = view_arguments(record, arguments)  # fmt: skip
        num_tokens, shape = len(tokens_T), shapes[0]
        num_parts, together = _count_parts(num_tokens, num_groups), _size_part(num_tokens, num_groups)
        is_alone = num_groups > 1
        member, members, group = (ZERO, 1, thread) if is_alone else (thread, num_threads, ZERO)
        h, k, width = shape.num_heads, shape.num_kv_heads, shape.head
        size, hidden_width, mlp = shape.hidden_size, shape.hidden, shape.mlp
        q_width, qkv_width = h * width, (h + 2 * k) * width
        layer_size = len(kv) // shape.num_layers
        num_slots = layer_size // (k * 2 * width)
        x, rest = work[: num_tokens * hidden_width], work[num_tokens * hidden_width :]
        q, rest = rest[: num_tokens * q_width], rest[num_tokens * q_width :]
        room = rest[group * of_group : (group + 1) * of_group]
        part, wide = room[: together * hidden_width], room[together * hidden_width :]
        active = together * 2 * mlp
        active_x = wide[active:]
        room = rest[num_groups * of_group + thread * of_thread : num_groups * of_group + (thread + 1) * of_thread]
        normed, room = room[: together * hidden_width], room[together * hidden_width :]
        tile, scores = room[: 2 * MAX_GATHERED * width], room[2 * MAX_GATHERED * width :]
        of_rounded = len(rounded) // num_threads
        share_of_rounded = rounded[thread * of_rounded : (thread + 1) * of_rounded]
        hidden_first, hidden_end = share_columns(member, members, hidden_width)
        gate_first, gate_end = share_columns(member, members, mlp)
        # a part goes from the attention of a layer to the keys of the next one: these all parts wait for
        number = take_part(barrier) if is_alone else ZERO
        while number < (shape.num_layers + 1) * num_parts:
            layer, index = number // num_parts, number % num_parts
            if is_alone:
                wait_for_parts(barrier, layer * num_parts)
            # after the last layer's keys only the tokens with an output go on
            rows = every_T if layer < shape.num_layers else output_indices_W
            # few of them are fewer parts, for which there is as much room as for others; the other parts are empty
            num_filled = max(_count_parts(len(rows), num_groups), (len(rows) + together - 1) // together)
            first, end = _find_part(index, num_filled, len(rows), matrices)
            count = end - first
            if layer == 0:
                for t in range(first + member, end, members):
                    copy_row(embedding, tokens_T[t] * size, x, t * hidden_width, size)
                    for i in range(t * hidden_width + size, (t + 1) * hidden_width):
                        x[i] = np.float32(0.0)
                wait_for_team(barrier, members)
            elif count > 0:
                begin, layer_at = layers[layer - 1], (layer - 1) * layer_size
                for i in range(count):
                    x_at = rows[first + i] * hidden_width + hidden_first
                    copy_numbers(x, x_at, part, i * hidden_width + hidden_first, hidden_end - hidden_first)
                # of an argument that is None, Numba compiles one of the two alone
                if packed is None:
                    attend(
                        member, members, shape, rows, first, end, q, kv, layer_at, num_slots, key_slots, extra_slots,
                        keys_T, tile, scores, capacity, wide,
                    )  # fmt: skip
                else:
                    size_packed = len(tiles[0]) // num_threads
                    attend_in_tiles(
                        member, members, shape, rows, first, end, q, kv, layer_at, num_slots, key_slots, extra_slots,
                        keys_T, zeros, tile, scores, capacity, slots[thread * TILE_DEPTH :],
                        tiles[0][thread * size_packed : (thread + 1) * size_packed], wide,
                    )  # fmt: skip
                wait_for_team(barrier, members)
                multiply_share(
                    member, members, wide, q_width, count, shape.num_pieces, matrices, begin.out, q_width, hidden_width,
                    ZERO, hidden_width, part, hidden_width, vectors, begin.out_bias, part, share_of_rounded,
                )  # fmt: skip
                wait_for_team(barrier, members)
                for i in range(count):
                    normalise(
                        part, i * hidden_width, vectors, begin.mlp_norm, normed, i * hidden_width,
                        hidden_width, size, shape.eps,
                    )  # fmt: skip
                for half in range(0, 2 * mlp, mlp):
                    multiply_share(
                        member, members, normed, hidden_width, count, shape.num_pieces, matrices, begin.gate_up, size,
                        2 * mlp, half, half + mlp, zeros, ZERO, vectors, begin.gate_up_bias, wide, share_of_rounded,
                    )  # fmt: skip
                for i in range(count):
                    gate_at = i * 2 * mlp + gate_first
                    gate_values(wide, gate_at, gate_at + mlp, gate_end - gate_first, active + i * mlp + gate_first)
                wait_for_team(barrier, members)
                multiply_share(
                    member, members, active_x, mlp, count, shape.num_pieces, matrices, begin.down, mlp, hidden_width,
                    ZERO, hidden_width, part, hidden_width, vectors, begin.down_bias, part, share_of_rounded,
                )  # fmt: skip
                for i in range(count):
                    x_at = rows[first + i] * hidden_width + hidden_first
                    copy_numbers(part, i * hidden_width + hidden_first, x, x_at, hidden_end - hidden_first)
                wait_for_team(barrier, members)
            if layer < shape.num_layers:
                begin, layer_at = layers[layer], layer * layer_size
                for i in range(count):
                    normalise(
                        x, (first + i) * hidden_width, vectors, begin.attention_norm, normed, i * hidden_width,
                        hidden_width, size, shape.eps,
                    )  # fmt: skip
                multiply_share(
                    member, members, normed, hidden_width, count, shape.num_pieces, matrices, begin.qkv, size,
                    qkv_width, ZERO, qkv_width, zeros, ZERO, vectors, begin.qkv_bias, wide, share_of_rounded,
                )  # fmt: skip
                wait_for_team(barrier, members)
                for i in range(member, count, members):
                    t, row_at = first + i, i * qkv_width
                    rotate_heads(shape, begin, vectors, wide, row_at, cos_sin, positions_T[t])
                    copy_numbers(wide, row_at, q, t * q_width, q_width)
                    for head in range(k):
                        key_at = row_at + (h + head) * width
                        slot_at = layer_at + (head * num_slots + slots_T[t]) * 2 * width
                        copy_numbers(wide, key_at, kv, slot_at, width)
                        copy_numbers(wide, key_at + k * width, kv, slot_at + width, width)
                wait_for_team(barrier, members)
            else:
                for w in range(first + member, end, members):
                    normalise(
                        x, rows[w] * hidden_width, vectors, len(vectors) - hidden_width, normed, ZERO,
                        hidden_width, size, shape.eps,
                    )  # fmt: skip
                    copy_row(normed, ZERO, hidden, w * size, size)
            if is_alone:
                end_part(barrier)
                number = take_part(barrier)
            else:
                number += 1
        if is_alone:
            wait_for_parts(barrier, (shape.num_layers + 1) * num_parts)
        if not is_called:
            break
        end_call(states, thread - 1)
    if calls:
        dismiss_helpers(states, num_threads - 1)
