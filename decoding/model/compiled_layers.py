"""Runs the layers of a decoder over packed tokens in one compiled call; K and V are read and written in their slots.

Shapes: T packed tokens, W tokens whose output is needed, L layers, H query heads, K key-value heads, D head size.

Each number depends on the tokens before it alone, to the last bit: not on the other tokens of the batch, on how a
prompt was cut, on a draft, or on which keys are shared. Sums over keys run in the order of positions, and a product's
sum in the order of its depth (see `vector_kernels`).

Widths are multiples of 32, filled up with zeros. Matrices are stored in panels of 32 columns,
`[columns / 32, depth, 32]`, float32 or pairs of bfloat16.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.model.vector_kernels import (
    PANEL,
    TILE,
    add_values,
    copy_numbers,
    exponentiate,
    gate_values,
    multiply_panels,
    scale_numbers,
    score_keys,
    sum_squares,
)

Floats = npt.NDArray[np.float32]
Panels = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
Ints = npt.NDArray[np.int64]

SCORES_PADDING = 40
"""Numbers of a row of scores beyond those of its keys: what whole vectors write too many, and a sum at the end."""

_CHUNK = 64  # rows that go through a layer together: their numbers stay in the cache


class StackShape(NamedTuple):
    """The sizes of a decoder. `hidden`, `mlp` and `head` are the sizes in memory, multiples of 32.

    head_size  numbers of a head before it is filled up
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    hidden_size: int
    head_size: int
    hidden: int
    head: int
    mlp: int
    eps: float
    scale: float


class LayerOffsets(NamedTuple):
    """Where the parts of each layer begin, matrices in one array and vectors in another; -1: there is no such part."""

    attention_norm: Ints
    qkv: Ints
    qkv_bias: Ints
    q_norm: Ints
    k_norm: Ints
    out: Ints
    out_bias: Ints
    mlp_norm: Ints
    gate_up: Ints
    gate_up_bias: Ints
    down: Ints
    down_bias: Ints


class KeyLists(NamedTuple):
    """The slots that each token of a batch attends to.

    Token t sees `slots[start_T[t] : start_T[t] + count_T[t]]`, positions from 0 on, and then
    `extra_slots[extra_start_T[t] : extra_start_T[t] + extra_count_T[t]]`: the draft nodes among its ancestors.

    common_T   how many of its first keys token t has in common with token t - 1
    """

    slots: Ints
    extra_slots: Ints
    start_T: Ints
    count_T: Ints
    extra_start_T: Ints
    extra_count_T: Ints
    common_T: Ints


@compiled
def list_keys(
    first: int, shared_len_G: Ints, old_N: Ints, visible_NRU: npt.NDArray[np.bool_], row_R: Ints, start_N: Ints,
    lists: KeyLists, extra_at: int,
) -> int:  # fmt: skip
    """Fills in the lists of the tokens of one block, whose flat rows are `row_R`, but for `slots`. *Mutates* `lists`.

    `slots` has the keys of sequence n from `start_N[n]` on: those of its group, `old_N[n]` of its own, and new ones.
    Returns the new end of `extra_slots`.
    """
    num_sequences, num_rows, num_new = visible_NRU.shape
    per_group = num_sequences // len(shared_len_G)
    before = -1
    for i in range(len(row_R)):
        t, n, r = first + i, row_R[i] // num_rows, row_R[i] % num_rows
        group = n // per_group
        shared = shared_len_G[group]
        visible = visible_NRU[n, r]
        count, old = 0, shared + old_N[n]
        while count < num_new and visible[count]:
            count += 1
        lists.start_T[t], lists.count_T[t], lists.extra_start_T[t] = start_N[n], old + count, extra_at
        for key in range(count, num_new):
            if visible[key]:
                lists.extra_slots[extra_at] = lists.slots[start_N[n] + old + key]
                extra_at += 1
        lists.extra_count_T[t] = extra_at - lists.extra_start_T[t]
        if i == 0 or before != group:
            lists.common_T[t] = 0
        elif lists.start_T[t - 1] == start_N[n]:
            lists.common_T[t] = min(lists.count_T[t - 1], lists.count_T[t])
        else:
            lists.common_T[t] = shared
        before = group
    return extra_at


@compiled
def _multiply_some(
    num_rows: int, panels: int, x: Floats, x_at: int, x_stride: int, w: Panels, w_at: int, depth: int,
    start: Floats, start_at: int, start_stride: int, y: Floats, y_at: int, y_stride: int,
) -> None:  # fmt: skip
    """Calls the code for these numbers of rows and panels: their sums stay in registers."""
    if num_rows == 4 and panels == 1:
        multiply_panels(4, 1, x, x_at, x_stride, w, w_at, depth, start, start_at, start_stride, y, y_at, y_stride)
    elif num_rows == 3 and panels == 1:
        multiply_panels(3, 1, x, x_at, x_stride, w, w_at, depth, start, start_at, start_stride, y, y_at, y_stride)
    elif num_rows == 2 and panels == 2:
        multiply_panels(2, 2, x, x_at, x_stride, w, w_at, depth, start, start_at, start_stride, y, y_at, y_stride)
    elif num_rows == 2 and panels == 1:
        multiply_panels(2, 1, x, x_at, x_stride, w, w_at, depth, start, start_at, start_stride, y, y_at, y_stride)
    elif num_rows == 1 and panels == 4:
        multiply_panels(1, 4, x, x_at, x_stride, w, w_at, depth, start, start_at, start_stride, y, y_at, y_stride)
    elif num_rows == 1 and panels == 2:
        multiply_panels(1, 2, x, x_at, x_stride, w, w_at, depth, start, start_at, start_stride, y, y_at, y_stride)
    else:
        multiply_panels(1, 1, x, x_at, x_stride, w, w_at, depth, start, start_at, start_stride, y, y_at, y_stride)


@compiled
def multiply(
    x: Floats, x_at: int, x_stride: int, num_rows: int, w: Panels, w_at: int, depth: int, columns: int,
    start: Floats, start_at: int, start_stride: int, y: Floats, y_at: int, y_stride: int,
) -> None:  # fmt: skip
    """Sets `y = start + x @ w` for all rows; `start` may be `y`."""
    num_panels = columns // PANEL
    for first in range(0, num_panels, TILE):
        # these few panels stay in the cache until all rows have read them
        end = min(first + TILE, num_panels)
        for row in range(0, num_rows, TILE):
            size = min(TILE, num_rows - row)
            panel = first
            while panel < end:
                together = TILE // size if panel + TILE // size <= end else 1
                column = panel * PANEL
                _multiply_some(
                    size, together, x, x_at + row * x_stride, x_stride, w, w_at + column * depth, depth,
                    start, start_at + row * start_stride + column, start_stride,
                    y, y_at + row * y_stride + column, y_stride,
                )  # fmt: skip
                panel += together


@compiled
def _copy(x: Floats, x_at: int, y: Floats, y_at: int, width: int) -> None:
    # element by element: Numba compiles the assignment of a slice twenty times as long
    for i in range(width):
        y[y_at + i] = x[x_at + i]


@compiled
def _normalise(
    x: Floats, x_at: int, weights: Floats, norm_at: int, y: Floats, y_at: int, width: int, size: int, eps: float
) -> None:
    """Sets `y` to the RMS norm of `size` numbers in `width`."""
    factor = np.float32(1.0) / np.float32(math.sqrt(sum_squares(x, x_at, width) / np.float32(size) + np.float32(eps)))
    scale_numbers(x, x_at, factor, weights, norm_at, y, y_at, width)


@compiled
def _rotate(x: Floats, x_at: int, size: int, cos_sin: Floats, position: int, factor: float) -> None:
    """Rotates the `size` numbers of a head in place, and multiplies them by `factor`."""
    half = size // 2
    scale = np.float32(factor)
    cos = position * 2 * size
    sin = cos + size
    for i in range(half):
        a, b = x[x_at + i], x[x_at + half + i]
        x[x_at + i] = (a * cos_sin[cos + i] + b * cos_sin[sin + i]) * scale
        x[x_at + half + i] = (b * cos_sin[cos + half + i] + a * cos_sin[sin + half + i]) * scale


@compiled
def _attend(
    shape: StackShape, rows: Ints, first: int, end: int, q: Floats, kv: Floats, layer_at: int, num_slots: int,
    keys: KeyLists, tile: Floats, scores: Floats, capacity: int, out: Floats, out_at: int,
) -> None:  # fmt: skip
    """Computes attention of tokens `rows[first:end]`: `[end - first, H * D]`. *Mutates* `tile` and `scores`."""
    width, per_kv = shape.head, shape.num_heads // shape.num_kv_heads
    q_width = shape.num_heads * width
    out_tile = TILE * width  # the second half of `tile`
    num_queries = (end - first) * per_kv
    query = 0
    while query < num_queries:
        size = TILE if query + TILE <= num_queries else 1
        first_row, last_row = rows[first + query // per_kv], rows[first + (query + size - 1) // per_kv]
        common = keys.count_T[first_row]
        for t in range(first_row + 1, last_row + 1):
            common = min(common, keys.common_T[t])
        start = keys.start_T[first_row]
        for k in range(shape.num_kv_heads):
            kv_at = layer_at + k * num_slots * 2 * width
            for i in range(size):
                t = rows[first + (query + i) // per_kv]
                q_at = t * q_width + (k * per_kv + (query + i) % per_kv) * width
                copy_numbers(q, q_at, tile, i * width, width)
            for i in range(out_tile, 2 * out_tile):
                tile[i] = np.float32(0.0)
            if common:
                if size == TILE:
                    score_keys(TILE, tile, 0, width, kv, kv_at, keys.slots, start, common, scores, 0, capacity)
                else:
                    score_keys(1, tile, 0, width, kv, kv_at, keys.slots, start, common, scores, 0, capacity)
            for i in range(size):
                t = rows[first + (query + i) // per_kv]
                at, count, extra = i * capacity, keys.count_T[t], keys.extra_count_T[t]
                if count > common:
                    score_keys(
                        1, tile, i * width, width, kv, kv_at, keys.slots, keys.start_T[t] + common, count - common,
                        scores, at + common, capacity,
                    )  # fmt: skip
                if extra:
                    score_keys(
                        1, tile, i * width, width, kv, kv_at, keys.extra_slots, keys.extra_start_T[t], extra,
                        scores, at + count, capacity,
                    )  # fmt: skip
                # the sum waits where the row has no score
                scores[at + capacity - 1] = exponentiate(scores, at, count + extra)
            if common:
                if size == TILE:
                    add_values(TILE, scores, 0, capacity, kv, kv_at, width, keys.slots, start, common, tile, out_tile)
                else:
                    add_values(1, scores, 0, capacity, kv, kv_at, width, keys.slots, start, common, tile, out_tile)
            for i in range(size):
                t = rows[first + (query + i) // per_kv]
                at, count, extra = i * capacity, keys.count_T[t], keys.extra_count_T[t]
                o_at = out_tile + i * width
                if count > common:
                    add_values(
                        1, scores, at + common, capacity, kv, kv_at, width, keys.slots, keys.start_T[t] + common,
                        count - common, tile, o_at,
                    )  # fmt: skip
                if extra:
                    add_values(
                        1, scores, at + count, capacity, kv, kv_at, width, keys.extra_slots, keys.extra_start_T[t],
                        extra, tile, o_at,
                    )  # fmt: skip
                factor = np.float32(1.0) / scores[at + capacity - 1]
                y_at = out_at + ((query + i) // per_kv) * q_width + (k * per_kv + (query + i) % per_kv) * width
                for d in range(width):
                    out[y_at + d] = tile[o_at + d] * factor
        query += size


@compiled
def _add_bias(x: Floats, x_at: int, num_rows: int, width: int, weights: Floats, bias_at: int) -> None:
    for row in range(num_rows):
        for i in range(width):
            x[x_at + row * width + i] += weights[bias_at + i]


@compiled
def run_layers(
    shape: StackShape, matrices: Panels, vectors: Floats, layers: LayerOffsets, embedding: Floats,
    cos_sin: Floats, tokens_T: Ints, positions_T: Ints, slots_T: Ints, output_indices_W: Ints, keys: KeyLists,
    capacity: int, kv: Floats, hidden: Floats,
) -> None:  # fmt: skip
    """Runs all layers; sets `hidden` to the normed hidden states `[W, hidden]`. *Mutates* the pool `kv` at `slots_T`.

    capacity  numbers of a row of scores: at least the most keys of a token + SCORES_PADDING
    """
    num_tokens = len(tokens_T)
    h, k, width = shape.num_heads, shape.num_kv_heads, shape.head
    size, hidden_width, mlp = shape.hidden_size, shape.hidden, shape.mlp
    q_width, qkv_width = h * width, (h + 2 * k) * width
    layer_size = len(kv) // shape.num_layers
    num_slots = layer_size // (k * 2 * width)
    x = np.zeros(num_tokens * hidden_width, dtype=np.float32)
    q = np.empty(num_tokens * q_width, dtype=np.float32)
    part = np.empty(_CHUNK * hidden_width, dtype=np.float32)
    normed = np.empty(_CHUNK * hidden_width, dtype=np.float32)
    wide = np.empty(_CHUNK * max(qkv_width, q_width, 3 * mlp), dtype=np.float32)
    tile = np.empty(2 * TILE * width, dtype=np.float32)
    scores = np.empty(TILE * capacity, dtype=np.float32)
    zeros = np.zeros(max(qkv_width, 2 * mlp, hidden_width), dtype=np.float32)
    every = np.arange(num_tokens)
    for t in range(num_tokens):
        _copy(embedding, tokens_T[t] * size, x, t * hidden_width, size)
    for layer in range(shape.num_layers):
        layer_at = layer * layer_size
        for first in range(0, num_tokens, _CHUNK):
            count = min(_CHUNK, num_tokens - first)
            for i in range(count):
                _normalise(
                    x, (first + i) * hidden_width, vectors, layers.attention_norm[layer], normed, i * hidden_width,
                    hidden_width, size, shape.eps,
                )  # fmt: skip
            multiply(
                normed, 0, hidden_width, count, matrices, layers.qkv[layer], size, qkv_width,
                zeros, 0, 0, wide, 0, qkv_width,
            )  # fmt: skip
            if layers.qkv_bias[layer] >= 0:
                _add_bias(wide, 0, count, qkv_width, vectors, layers.qkv_bias[layer])
            for i in range(count):
                t, at = first + i, i * qkv_width
                for head in range(h + k):
                    head_at = at + head * width
                    norm = layers.q_norm[layer] if head < h else layers.k_norm[layer]
                    if norm >= 0:
                        _normalise(wide, head_at, vectors, norm, wide, head_at, width, shape.head_size, shape.eps)
                    _rotate(wide, head_at, shape.head_size, cos_sin, positions_T[t], shape.scale if head < h else 1.0)
                copy_numbers(wide, at, q, t * q_width, q_width)
                for head in range(k):
                    slot_at = layer_at + (head * num_slots + slots_T[t]) * 2 * width
                    key_at = at + (h + head) * width
                    copy_numbers(wide, key_at, kv, slot_at, width)
                    copy_numbers(wide, key_at + k * width, kv, slot_at + width, width)
        # after the last layer's keys only the tokens with an output go on
        rows = output_indices_W if layer == shape.num_layers - 1 else every
        for first in range(0, len(rows), _CHUNK):
            count = min(_CHUNK, len(rows) - first)
            for i in range(count):
                copy_numbers(x, rows[first + i] * hidden_width, part, i * hidden_width, hidden_width)
            _attend(
                shape, rows, first, first + count, q, kv, layer_at, num_slots, keys, tile, scores, capacity, wide, 0
            )
            multiply(
                wide, 0, q_width, count, matrices, layers.out[layer], q_width, hidden_width,
                part, 0, hidden_width, part, 0, hidden_width,
            )  # fmt: skip
            if layers.out_bias[layer] >= 0:
                _add_bias(part, 0, count, hidden_width, vectors, layers.out_bias[layer])
            for i in range(count):
                _normalise(
                    part, i * hidden_width, vectors, layers.mlp_norm[layer], normed, i * hidden_width,
                    hidden_width, size, shape.eps,
                )  # fmt: skip
            multiply(
                normed, 0, hidden_width, count, matrices, layers.gate_up[layer], size, 2 * mlp,
                zeros, 0, 0, wide, 0, 2 * mlp,
            )  # fmt: skip
            if layers.gate_up_bias[layer] >= 0:
                _add_bias(wide, 0, count, 2 * mlp, vectors, layers.gate_up_bias[layer])
            active = _CHUNK * 2 * mlp
            for i in range(count):
                gate_at = i * 2 * mlp
                gate_values(wide, gate_at, gate_at + mlp, mlp, active + i * mlp)
            multiply(
                wide, active, mlp, count, matrices, layers.down[layer], mlp, hidden_width,
                part, 0, hidden_width, part, 0, hidden_width,
            )  # fmt: skip
            if layers.down_bias[layer] >= 0:
                _add_bias(part, 0, count, hidden_width, vectors, layers.down_bias[layer])
            for i in range(count):
                copy_numbers(part, i * hidden_width, x, rows[first + i] * hidden_width, hidden_width)
    for w in range(len(output_indices_W)):
        _normalise(
            x,
            output_indices_W[w] * hidden_width,
            vectors,
            len(vectors) - hidden_width,
            normed,
            0,
            hidden_width,
            size,
            shape.eps,
        )
        _copy(normed, 0, hidden, w * size, size)
