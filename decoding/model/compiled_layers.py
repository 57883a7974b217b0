"""Runs the layers of a decoder over packed tokens in one compiled call; K and V are read and written in their slots.

Shapes: T packed tokens, W tokens whose output is needed, L layers, H query heads, K key-value heads, D head size.

Each number depends on the tokens before it alone, to the last bit: not on the other tokens of the batch, on how a
prompt was cut, on a draft, or on which keys are shared. Sums over keys run in the order of positions, and a product's
sum in the order of its depth (see `decoding.vector_kernels`).

Widths are multiples of 32, filled up with zeros. Matrices are stored in panels of 32 columns (see `weight_panels`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from decoding.compiled import compiled, compiled_in_place
from decoding.model.backend import Records
from decoding.model.compiled_attention import MAX_GATHERED, SCORES_PADDING, Numbers, attend
from decoding.model.key_lists import KEYS_RECORD
from decoding.model.panel_products import ZERO, Ints, multiply_share, share_columns
from decoding.model.tile_attention import attend_in_tiles
from decoding.model.weight_panels import Floats, Panels
from decoding.team_barrier import wait_for_team
from decoding.tile_kernels import TILE_DEPTH
from decoding.vector_emitter import LANES
from decoding.vector_kernels import copy_numbers, gate_values, rotate_pairs, scale_numbers, sum_squares

_CHUNK = 128
"""Most rows that go through a layer together. Of more each part reads all weights again; but the numbers of all must
stay in the cache: 1,000 rows of float32 take a tenth longer in parts of 256."""

_PART = 16  # rows of a part are a multiple of it, a tile's rows


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


@compiled_in_place
def _copy(x: Floats, x_at: int, y: Floats, y_at: int, width: int) -> None:
    # element by element: Numba compiles the assignment of a slice twenty times as long
    for i in range(width):
        y[y_at + i] = x[x_at + i]


@compiled_in_place
def _normalise(
    x: Floats, x_at: int, weights: Floats, norm_at: int, y: Floats, y_at: int, width: int, size: int, eps: float
) -> None:
    """Sets `y` to the RMS norm of `size` numbers in `width`."""
    factor = np.float32(1.0) / np.float32(math.sqrt(sum_squares(x, x_at, width) / np.float32(size) + np.float32(eps)))
    scale_numbers(x, x_at, factor, weights, norm_at, y, y_at, width)


@compiled_in_place
def _rotate(x: Floats, x_at: int, size: int, cos_sin: Floats, position: int, factor: float) -> None:
    """Rotates the `size` numbers of a head in place, and multiplies them by `factor`."""
    half = size // 2
    scale = np.float32(factor)
    cos = position * 2 * size
    sin = cos + size
    if half % LANES == 0:
        rotate_pairs(x, x_at, half, cos_sin, cos, sin, scale)
        return
    for i in range(half):
        a, b = x[x_at + i], x[x_at + half + i]
        x[x_at + i] = (a * cos_sin[cos + i] + b * cos_sin[sin + i]) * scale
        x[x_at + half + i] = (b * cos_sin[cos + half + i] + a * cos_sin[sin + half + i]) * scale


@compiled_in_place
def _rotate_heads(
    shape: StackShape, begin: Any, vectors: Floats, x: Floats, row_at: int, cos_sin: Floats, position: int
) -> None:
    """Norms the queries and keys of a row, where the layer has such norms, and rotates them in place."""
    for head in range(shape.num_heads + shape.num_kv_heads):
        head_at, is_query = row_at + head * shape.head, head < shape.num_heads
        norm = begin.q_norm if is_query else begin.k_norm
        if norm >= 0:
            _normalise(x, head_at, vectors, norm, x, head_at, shape.head, shape.head_size, shape.eps)
        _rotate(x, head_at, shape.head_size, cos_sin, position, shape.scale if is_query else 1.0)


def compile_attention() -> None:
    """Compiles the part of `run_layers` that takes longest, which is then found when the others are compiled."""
    ints, floats, keys = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.float32), np.zeros(1, dtype=KEYS_RECORD)
    shape: Any = np.ones(1, dtype=SHAPE_RECORD)[0]
    attend(0, 1, shape, ints, 0, 0, floats, floats, 0, 1, ints, ints, keys, floats, floats, 1, floats)


@compiled_in_place
def size_work(shapes: Records, num_threads: int, positions_T: Ints, keys_T: Records) -> tuple[int, int, int, int]:
    """Returns the numbers of `run_layers` in memory: all of them, those of a thread, and those of a row of scores; and
    the largest position."""
    capacity = largest = ZERO
    for t in range(len(positions_T)):
        largest = max(largest, positions_T[t])
    for t in range(len(keys_T)):
        capacity = max(capacity, keys_T[t].count + keys_T[t].extra_count + SCORES_PADDING)
    size, of_thread = size_rows(shapes, num_threads, len(positions_T), capacity)
    return size, of_thread, capacity, largest


@compiled_in_place
def size_rows(shapes: Records, num_threads: int, num_tokens: int, capacity: int) -> tuple[int, int]:
    """Returns the numbers of `run_layers` in memory, all of them and those of a thread, for rows of scores this long.

    Fewer rows may need more of all: see `size_most_rows`.
    """
    shape = shapes[0]
    together = _count_together(num_tokens)
    of_thread = together * shape.hidden + 2 * MAX_GATHERED * shape.head + MAX_GATHERED * capacity
    q_width = shape.num_heads * shape.head
    shared = num_tokens * (shape.hidden + q_width) + together * (shape.hidden + _wide_size(shape))
    return shared + num_threads * of_thread, of_thread


@compiled_in_place
def size_most_rows(shapes: Records, num_tokens: int, capacity: int) -> int:
    """Returns the numbers of `run_layers` in memory that any pass of up to so many rows needs, with one thread."""
    # parts are smaller where they are one more
    whole_parts = num_tokens // _CHUNK * _CHUNK
    size, _ = size_rows(shapes, 1, num_tokens, capacity)
    size_of_parts, _ = size_rows(shapes, 1, whole_parts, capacity)
    return max(size, size_of_parts)


@compiled_in_place
def _count_together(num_rows: int) -> int:
    """Returns how many rows go through a layer together: parts as equal as possible, of whole tiles."""
    num_parts = max((num_rows + _CHUNK - 1) // _CHUNK, 1)
    return (num_rows + num_parts * _PART - 1) // (num_parts * _PART) * _PART


@compiled_in_place
def _wide_size(shape: StackShape) -> int:
    """Numbers of a row of what is between two products: query, key and value, attention, or gate, up and both."""
    return max((shape.num_heads + 2 * shape.num_kv_heads) * shape.head, 3 * shape.mlp)


@compiled
def run_layers(
    thread: int, num_threads: int, barrier: Ints, shapes: Records, layers: Records, matrices: Panels,
    vectors: Floats, embedding: Floats, cos_sin: Floats,
    tokens_T: Ints, positions_T: Ints, slots_T: Ints, output_indices_W: Ints,
    every_T: Ints, key_slots: Ints, extra_slots: Ints, keys_T: Records, kv: Numbers,
    work: Floats, of_thread: int, capacity: int, packed: Panels | None, slots: Ints, zeros: Floats, hidden: Floats,
) -> None:  # fmt: skip
    """Runs one thread's share of all layers; `hidden` becomes the normed hidden states `[W, hidden]`.

    *Mutates* the pool `kv` at `slots_T`, and `work`, which all threads have together. Nothing raises here: the other
    threads would wait for ever.

    shapes     one record
    of_thread  and `capacity`, the size of `work`: as `size_work` says
    every_T    numbers of all tokens
    packed     where attention packs keys and values of bfloat16 into tiles; None where it reads them as they are
    slots      room for 32 numbers of each thread
    zeros      as many as a product has columns
    """
    num_tokens, shape = len(tokens_T), shapes[0]
    together = _count_together(num_tokens)
    h, k, width = shape.num_heads, shape.num_kv_heads, shape.head
    size, hidden_width, mlp = shape.hidden_size, shape.hidden, shape.mlp
    q_width, qkv_width = h * width, (h + 2 * k) * width
    layer_size = len(kv) // shape.num_layers
    num_slots = layer_size // (k * 2 * width)
    share = work[thread * of_thread : (thread + 1) * of_thread]
    normed, rest = share[: together * hidden_width], share[together * hidden_width :]
    tile, scores = rest[: 2 * MAX_GATHERED * width], rest[2 * MAX_GATHERED * width :]
    shared = work[num_threads * of_thread :]
    x, rest = shared[: num_tokens * hidden_width], shared[num_tokens * hidden_width :]
    q, rest = rest[: num_tokens * q_width], rest[num_tokens * q_width :]
    part, wide = rest[: together * hidden_width], rest[together * hidden_width :]
    active = together * 2 * mlp
    active_x = wide[active:]
    hidden_first, hidden_end = share_columns(thread, num_threads, hidden_width)
    gate_first, gate_end = share_columns(thread, num_threads, mlp)
    for t in range(thread, num_tokens, num_threads):
        _copy(embedding, tokens_T[t] * size, x, t * hidden_width, size)
        for i in range(t * hidden_width + size, (t + 1) * hidden_width):
            x[i] = np.float32(0.0)
    wait_for_team(barrier, num_threads)
    for layer in range(shape.num_layers):
        layer_at, begin = layer * layer_size, layers[layer]
        for first in range(0, num_tokens, together):
            count = min(together, num_tokens - first)
            for i in range(count):
                _normalise(
                    x, (first + i) * hidden_width, vectors, begin.attention_norm, normed, i * hidden_width,
                    hidden_width, size, shape.eps,
                )  # fmt: skip
            multiply_share(
                thread, num_threads, normed, hidden_width, count, shape.num_pieces, matrices, begin.qkv, size,
                qkv_width, ZERO, qkv_width, zeros, ZERO, vectors, begin.qkv_bias, wide,
            )  # fmt: skip
            wait_for_team(barrier, num_threads)
            for i in range(thread, count, num_threads):
                t, row_at = first + i, i * qkv_width
                _rotate_heads(shape, begin, vectors, wide, row_at, cos_sin, positions_T[t])
                copy_numbers(wide, row_at, q, t * q_width, q_width)
                for head in range(k):
                    key_at = row_at + (h + head) * width
                    slot_at = layer_at + (head * num_slots + slots_T[t]) * 2 * width
                    copy_numbers(wide, key_at, kv, slot_at, width)
                    copy_numbers(wide, key_at + k * width, kv, slot_at + width, width)
            wait_for_team(barrier, num_threads)
        # after the last layer's keys only the tokens with an output go on
        rows = output_indices_W if layer == shape.num_layers - 1 else every_T
        for first in range(0, len(rows), together):
            count = min(together, len(rows) - first)
            for i in range(count):
                x_at = rows[first + i] * hidden_width + hidden_first
                copy_numbers(x, x_at, part, i * hidden_width + hidden_first, hidden_end - hidden_first)
            # of an argument that is None, Numba compiles one of the two alone
            if packed is None:
                attend(
                    thread, num_threads, shape, rows, first, first + count, q, kv, layer_at, num_slots, key_slots,
                    extra_slots, keys_T, tile, scores, capacity, wide,
                )  # fmt: skip
            else:
                size_packed = len(packed) // num_threads
                attend_in_tiles(
                    thread, num_threads, shape, rows, first, first + count, q, kv, layer_at, num_slots, key_slots,
                    extra_slots, keys_T, zeros, tile, scores, capacity, slots[thread * TILE_DEPTH :],
                    packed[thread * size_packed : (thread + 1) * size_packed], wide,
                )  # fmt: skip
            wait_for_team(barrier, num_threads)
            multiply_share(
                thread, num_threads, wide, q_width, count, shape.num_pieces, matrices, begin.out, q_width, hidden_width,
                ZERO, hidden_width, part, hidden_width, vectors, begin.out_bias, part,
            )  # fmt: skip
            wait_for_team(barrier, num_threads)
            for i in range(count):
                _normalise(
                    part, i * hidden_width, vectors, begin.mlp_norm, normed, i * hidden_width,
                    hidden_width, size, shape.eps,
                )  # fmt: skip
            for half in range(0, 2 * mlp, mlp):
                multiply_share(
                    thread, num_threads, normed, hidden_width, count, shape.num_pieces, matrices, begin.gate_up, size,
                    2 * mlp, half, half + mlp, zeros, ZERO, vectors, begin.gate_up_bias, wide,
                )  # fmt: skip
            for i in range(count):
                gate_at = i * 2 * mlp + gate_first
                gate_values(wide, gate_at, gate_at + mlp, gate_end - gate_first, active + i * mlp + gate_first)
            wait_for_team(barrier, num_threads)
            multiply_share(
                thread, num_threads, active_x, mlp, count, shape.num_pieces, matrices, begin.down, mlp, hidden_width,
                ZERO, hidden_width, part, hidden_width, vectors, begin.down_bias, part,
            )  # fmt: skip
            for i in range(count):
                x_at = rows[first + i] * hidden_width + hidden_first
                copy_numbers(part, i * hidden_width + hidden_first, x, x_at, hidden_end - hidden_first)
            wait_for_team(barrier, num_threads)
    for w in range(thread, len(output_indices_W), num_threads):
        _normalise(
            x, output_indices_W[w] * hidden_width, vectors, len(vectors) - hidden_width, normed, ZERO,
            hidden_width, size, shape.eps,
        )  # fmt: skip
        _copy(normed, ZERO, hidden, w * size, size)
