"""Runs a decoder on a CPU: one compiled call for all layers of a forward pass.

An eager forward pass of a small model takes longer in the calls of its operations than in their arithmetic. Measured
with the bundled target (1.8 M weights), one thread, 330 keys per row, 300 of them shared: the eager decoder takes
4.3 times as long for 1 row, 2.7 times for 16 and 2.1 times for 64. Products of few rows by a large matrix are faster
than PyTorch's too, and a long pass shares them among threads (`decoder_choice` has figures).

A row's result has the same bits whatever else is in its batch (see `compiled_layers`).

All numbers are float32 but weights that are numbers of bfloat16. For a model in bfloat16 each product rounds its rows
(see `tile_kernels`), and keys and values are stored in it; what is between stays float32: more exact than the eager
decoder, which rounds every result.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoding.compiled import compiling_once
from decoding.cpu_features import has_tiles
from decoding.helper_calls import NO_STATES
from decoding.kv.pool_memory import allocate_zeros
from decoding.kv.slots import NO_SLOTS
from decoding.model.backend import Records, TokenBatch
from decoding.model.compiled_attention import SCORES_PADDING, Numbers
from decoding.model.compiled_layers import (
    LAYER_RECORD,
    SHAPE_RECORD,
    StackShape,
    run_layers,
    size_most_rows,
    size_rounded_rows,
    size_work,
)
from decoding.model.decoder_choice import explain_uncompiled
from decoding.model.decoder_weights import DecoderWeights, FusedLayer
from decoding.model.key_lists import ListedRows, list_keys
from decoding.model.panel_products import Ints, multiply_in_team, size_rounded
from decoding.model.panels import Floats, Panels, round_up
from decoding.model.tile_attention import size_packed
from decoding.model.tile_products import count_tile_rows
from decoding.model.weight_panels import (
    allocate_aligned,
    allocate_weights,
    pick_panel_type,
    take_memory,
    take_rounded,
    write_panels,
)
from decoding.thread_team import find_team, run_in_team
from decoding.threads import MIN_SHARED_ROWS, count_sharing_threads, count_threads
from decoding.tile_kernels import EXACT, ROUNDED, TILE, TILE_DEPTH

_FULL_TILES = (TILE, 2 * TILE, 3 * TILE, 4 * TILE)
"""Rows; beyond them a round takes as long for each."""
_MAX_WIDENED = 1 << 22
"""Numbers of an embedding in bfloat16 up to which it is kept in float32 too: of one row, widening takes longer than the
first products of a small model."""

CACHED_BYTES = 1 << 21
"""Bytes of a layer's matrices up to which a core's caches keep them while rows go through the layer part by part."""
MIN_ROWS = 128
"""Rows for each thread from which on threads take rows of a larger layer; of fewer they share the columns of each
product."""


class CompiledDecoder:
    """Holds the weights of a decoder in panels, and runs it.

    It takes the layers one by one, and their matrices as the checkpoint has them: weights of bfloat16 are copied once,
    into their panels.

    Raises: ValueError for a model that `explain_uncompiled` names.
    """

    attention_seconds = 0.0
    """Not measured: attention is part of the one call."""

    loops: str
    """Names the loops that are compiled for it: those for numbers of these types."""

    def __init__(self, weights: DecoderWeights) -> None:
        if (reason := explain_uncompiled(weights)) is not None:
            raise ValueError(f"this model cannot run in the compiled decoder: {reason}")
        self._hidden_size, self._dtype = weights.hidden_size, weights.dtype
        self._rotary = weights.make_rotary(torch.float32)
        self._shape = StackShape(
            weights.num_layers, weights.num_heads, weights.num_kv_heads, weights.hidden_size, weights.head_size,
            round_up(weights.hidden_size), round_up(weights.head_size), round_up(weights.mlp_size),
            count_pieces(weights.dtype), weights.eps, weights.scale,
        )  # fmt: skip
        self._shapes = np.array([self._shape], dtype=SHAPE_RECORD)
        with torch.no_grad():
            self.embedding = weights.take_embedding(weights.lossless_place)
            self._matrices, self._vectors, self._layers = _lay_out_weights(weights, self._shape)
        is_wide = self.embedding.dtype == torch.float32 or self.embedding.numel() <= _MAX_WIDENED
        self._float_embedding = self.embedding.float().numpy().reshape(-1) if is_wide else None
        shape = self._shape
        qkv_width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head
        self._zeros = np.zeros(max(qkv_width, 2 * shape.mlp), dtype=np.float32)
        self.loops = f"{self._matrices.dtype}-{self._dtype}"
        self._num_weights = len(self._matrices)
        self._works = threading.local()
        self._positions = 0, np.empty(0, dtype=np.float32)
        self._find_cos_sin(0)
        self._compile()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's K and V in all layers; heads are filled up to multiples of 32."""
        shape = self._shape
        return 2 * shape.num_layers * shape.num_kv_heads * shape.head * self._dtype.itemsize

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return self._shape.num_layers

    @property
    def row_counts(self) -> tuple[int, ...]:
        """See `HFBackend`: numbers of rows that fill tiles."""
        return _FULL_TILES if self._matrices.dtype == np.int16 and has_tiles() else ()

    def view_layers(self, layers: Sequence[int]) -> CompiledDecoder:
        """Returns a decoder of these layers alone, with the same weights; its KV pools have those layers."""
        view = copy.copy(self)
        view._shape = self._shape._replace(num_layers=len(layers))
        view._shapes = np.array([view._shape], dtype=SHAPE_RECORD)
        view._layers = self._layers[list(layers)]
        view._num_weights = self._num_weights // self.num_layers * len(layers)
        return view

    def new_kv_pool(self, capacity: int) -> Tensor:
        """Returns `[layers, kv_heads, 1 + capacity, 2 * head]`, a token's key and value side by side."""
        shape = self._shape
        return allocate_zeros((shape.num_layers, shape.num_kv_heads, capacity + 1, 2 * shape.head), self._dtype)

    def run_batch(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        """Returns normed hidden states `[W, hidden]`. *Mutates* `pool`."""
        hidden = np.empty((len(batch.logits_indices), self._hidden_size), dtype=np.float32)
        num_tokens, keys = len(batch.tokens_T), batch.lists
        assert keys is not None, "batches of a compiled decoder have lists of keys"
        embedding, tokens_T = self._look_up(batch.tokens_T)
        num_threads, num_groups = self._count_threads(num_tokens)
        team = find_team(self.loops, run_layers) if num_groups > 1 else None
        if team is not None:
            team.wake(num_threads)
        work, of_thread, of_group, capacity, of_rounded, largest = size_work(
            self._shapes, self._matrices, num_threads, num_groups, batch.positions_T, keys.keys_T
        )
        cos_sin = self._find_cos_sin(largest)
        arguments = (
            num_groups,
            self._shapes, self._layers, self._matrices, self._vectors, embedding, cos_sin,
            tokens_T, batch.positions_T, batch.slots_T, batch.logits_indices, np.arange(num_tokens), *keys,
            self.view_numbers(pool), take_memory(self._works, "work", work, np.float32), of_thread, of_group, capacity,
            *self._take_packed(num_threads, capacity), self._zeros,
            take_rounded(self._works, of_rounded, num_threads, self._matrices.dtype.type), hidden.reshape(-1),
        )  # fmt: skip
        if team is not None:
            team.share_parts(num_threads, *arguments)
        else:
            run_in_team(num_threads, run_layers, NO_STATES, NO_STATES, *arguments)
        return torch.from_numpy(hidden).to(self._dtype)

    def _count_threads(self, num_tokens: int) -> tuple[int, int]:
        """Returns in how many threads a pass runs, and of how many groups of them each takes parts of the rows."""
        bytes_of_layer = self._matrices.itemsize * self._num_weights // self.num_layers
        # with tiles, which take a fraction of the time, sharing rows of such layers was not measured
        if bytes_of_layer <= CACHED_BYTES and not self.row_counts and num_tokens >= 2 * MIN_SHARED_ROWS:
            num_threads = count_sharing_threads(self._num_weights, num_tokens)
            return num_threads, num_threads
        num_threads = count_threads(self._num_weights, num_tokens)
        return num_threads, num_threads if num_tokens >= MIN_ROWS * num_threads else 1

    @staticmethod
    def view_numbers(pool: Tensor) -> Numbers:
        """Returns K and V of a pool as compiled code takes them."""
        # NumPy has no bfloat16
        numbers: Numbers = (pool if pool.dtype == torch.float32 else pool.view(torch.uint16)).numpy().reshape(-1)
        return numbers

    @property
    def fits_loops(self) -> bool:
        """Whether compiled loops can run it: they look tokens up in float32."""
        return self._float_embedding is not None

    @property
    def num_weights(self) -> int:
        """Weights in matrices."""
        return self._num_weights

    def list_arrays(self, num_rows: int, num_keys: int, largest: int) -> tuple[Any, ...]:
        """Returns what a compiled loop needs, in the order of the arguments of `compute_logits`.

        For passes of up to `num_rows` rows with up to `num_keys` keys and the position `largest`, in one thread.
        """
        capacity = num_keys + SCORES_PADDING
        size = size_most_rows(self._shapes, num_rows, capacity)
        of_rounded = size_rounded_rows(self._shapes, self._matrices, 1, num_rows)
        return (
            self._shapes, self._layers, self._matrices, self._vectors, self._float_embedding,
            self._find_cos_sin(largest), take_memory(self._works, "work", size, np.float32), capacity,
            *self._take_packed(1, capacity), self._zeros,
            take_rounded(self._works, of_rounded, 1, self._matrices.dtype.type),
        )  # fmt: skip

    def _look_up(self, tokens_T: Ints) -> tuple[Floats, Ints]:
        """Returns an embedding in float32 and the tokens' rows in it: of a large one in bfloat16 these rows alone."""
        if self._float_embedding is not None:
            return self._float_embedding, tokens_T
        rows = self.embedding.index_select(0, torch.from_numpy(tokens_T)).float()
        return rows.numpy().reshape(-1), np.arange(len(tokens_T))

    def _find_cos_sin(self, largest: int) -> Floats:
        """Returns the rotary table with at least the positions up to `largest`."""
        num_positions, cos_sin = self._positions
        if largest >= num_positions:
            table = self._rotary.extend_to(largest)
            cos_sin = table.numpy().reshape(-1)
            # both at once, and never read again here: another thread may put back a shorter table
            self._positions = len(table), cos_sin
        return cos_sin

    def _take_packed(self, num_threads: int, capacity: int) -> tuple[Panels | None, Ints]:
        """Returns memory in which the threads pack keys and values of bfloat16, and numbers of slots."""
        if self._dtype == torch.float32 or not has_tiles():
            return None, NO_SLOTS
        size = num_threads * size_packed(self._shape, capacity)
        packed: Panels = take_memory(self._works, "packed", size, np.int16)
        return packed[:size], np.empty(num_threads * TILE_DEPTH, dtype=np.int64)

    def _compile(self) -> None:
        """Loads the machine code, which the first run on a machine compiles: not during the first request."""
        zero = np.zeros(1, dtype=np.int64)
        keys = list_keys([ListedRows(zero + 1, 1)], zero)
        with compiling_once("layers", f"layers-{self.loops}"):
            self.run_batch(TokenBatch(zero, zero, zero + 1, zero, lists=keys), self.new_kv_pool(1))


class CompiledHead:
    """Computes a linear head, `[W, hidden] -> [W, outputs]`; a row has the same bits whatever the number of rows.

    dtype   of the model, to which bfloat16 rounds the rows; the weight's may be bfloat16 for one in float32
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._num_outputs, self._depth = weight.shape
        self._num_pieces = count_pieces(dtype)
        self._columns = round_up(self._num_outputs)
        panel_type = pick_panel_type([weight], self._depth, dtype)
        self._panels: Panels = allocate_weights(self._depth * self._columns, panel_type)
        write_panels(_widen_rows(weight, 1, self._columns, 1, self._depth), self._panels)
        self._bias = np.zeros(self._columns, dtype=np.float32)
        if bias is not None:
            self._bias[: self._num_outputs] = bias.float().numpy()
        self._works = threading.local()

    def __call__(self, hidden: Tensor) -> Tensor:
        rows = hidden.float().contiguous().numpy()
        outputs = self._take_outputs(len(rows))
        num_threads = count_threads(len(self._panels), len(rows))
        run_in_team(
            num_threads, multiply_in_team,
            rows.reshape(-1), len(rows), self._num_pieces, self._panels, self._depth, self._columns,
            self._bias, outputs, self._take_rounded(len(rows), num_threads),
        )  # fmt: skip
        result = outputs[: len(rows) * self._columns].reshape(len(rows), self._columns)
        # all tensors and arrays over this memory hold `result`
        self._works.result = weakref.ref(result)
        if self._columns > self._num_outputs:
            # a copy always: a part of one row is contiguous as it is, and the next call writes over it
            return torch.from_numpy(result[:, : self._num_outputs].copy())
        return torch.from_numpy(result)

    @property
    def num_weights(self) -> int:
        """Weights of its matrix."""
        return len(self._panels)

    @property
    def loops(self) -> str:
        """Names the loops that are compiled for it."""
        return str(self._panels.dtype)

    def list_arrays(self, num_rows: int) -> tuple[Any, ...]:
        """Returns what a compiled loop needs for `num_rows` rows, in the order of the arguments of `compute_logits`."""
        return self._panels, self._bias, self._num_outputs, self._num_pieces, self._take_rounded(num_rows, 1)

    def _take_rounded(self, num_rows: int, num_threads: int) -> Panels:
        size = size_rounded(num_rows, self._num_pieces, self._panels, self._depth)
        return take_rounded(self._works, size, num_threads, self._panels.dtype.type)

    def _take_outputs(self, num_rows: int) -> Floats:
        """Returns memory for these rows, the same again once no tensor is left of the result before: new memory is slow
        at first. A logit for each of 152,000 ids and 64 rows takes a fifth of the product's time.
        """
        # products in tiles write whole tiles
        size = count_tile_rows(num_rows) * self._columns
        works = self._works
        outputs: Floats | None = getattr(works, "outputs", None)
        if outputs is None or len(outputs) < size or works.result() is not None:
            works.outputs = outputs = np.empty(size, dtype=np.float32)
        return outputs


def count_pieces(dtype: torch.dtype) -> int:
    """Returns the pieces of a row in products of a model of this dtype."""
    return EXACT if dtype == torch.float32 else ROUNDED


def _lay_out_weights(weights: DecoderWeights, shape: StackShape) -> tuple[Panels, Floats, Records]:
    """Returns all matrices in one array, all vectors in another, and where the parts of each layer begin in theirs.

    The vectors end with the final norm. *Mutates*: takes the layers away, so that their memory is free as soon as
    they are laid out.
    """
    panel_type = pick_panel_type(weights.iter_matrices(), shape.hidden_size, weights.dtype)
    matrices, vectors = allocate_aligned(0, panel_type), np.empty(0, dtype=np.float32)
    offsets: list[list[int]] = []
    matrix_at = vector_at = 0
    for layer in weights.take_layers(weights.lossless_place):
        parts = _lay_out_layer(layer, shape)
        if not offsets:
            # all layers have the same parts; the system gives the memory of a page when it is first written
            sizes = [(part.ndim, part.numel()) for part in parts if part is not None]
            matrices = allocate_weights(shape.num_layers * sum(n for dims, n in sizes if dims > 1), panel_type)
            vectors = np.empty(shape.num_layers * sum(n for dims, n in sizes if dims == 1) + shape.hidden, np.float32)
        offsets.append([])
        for part in parts:
            if part is None:
                offsets[-1].append(-1)
            elif part.ndim == 1:
                offsets[-1].append(vector_at)
                vectors[vector_at : vector_at + len(part)] = part.float().numpy()
                vector_at += len(part)
            else:
                offsets[-1].append(matrix_at)
                write_panels(part, matrices[matrix_at : matrix_at + part.numel()])
                matrix_at += part.numel()
    vectors[vector_at:] = _widen(weights.copy_final_norm(), 1, shape.hidden).float().numpy()
    return matrices, vectors, np.array([tuple(row) for row in offsets], dtype=LAYER_RECORD)


def _lay_out_layer(layer: FusedLayer, shape: StackShape) -> list[Tensor | None]:
    """Returns the parts of a layer in the order of `LAYER_RECORD`, None for those that the model does not have.

    Vectors have one dimension, matrices two, `[out, in]`.
    """

    def widen_or_none(vector: Tensor | None, groups: int, width: int) -> Tensor | None:
        return None if vector is None else _widen(vector, groups, width)

    heads, all_heads, hidden = shape.num_heads, shape.num_heads + 2 * shape.num_kv_heads, shape.hidden_size
    return [
        _widen(layer.attention_norm, 1, shape.hidden),
        _widen_rows(layer.qkv.t(), all_heads, shape.head, 1, hidden),
        widen_or_none(layer.qkv_bias, all_heads, shape.head),
        widen_or_none(layer.q_norm, 1, shape.head),
        widen_or_none(layer.k_norm, 1, shape.head),
        _widen_rows(layer.out.t(), 1, shape.hidden, heads, shape.head),
        widen_or_none(layer.out_bias, 1, shape.hidden),
        _widen(layer.mlp_norm, 1, shape.hidden),
        _widen_rows(layer.gate_up.t(), 2, shape.mlp, 1, hidden),
        widen_or_none(layer.gate_up_bias, 2, shape.mlp),
        _widen_rows(layer.down.t(), 1, shape.hidden, 1, shape.mlp),
        widen_or_none(layer.down_bias, 1, shape.hidden),
    ]


def _widen(tensor: Tensor, groups: int, width: int) -> Tensor:
    """Returns `[..., groups * width]`: each group of the last dimension is filled up with zeros."""
    if tensor.shape[-1] == groups * width:
        return tensor
    grouped = tensor.reshape(*tensor.shape[:-1], groups, -1)
    return torch.nn.functional.pad(grouped, (0, width - grouped.shape[-1])).flatten(-2)


def _widen_rows(rows: Tensor, groups: int, width: int, depth_groups: int, depth: int) -> Tensor:
    """Returns `[groups * width, depth_groups * depth]`: each group of rows and each of a row is filled up."""
    return _widen(_widen(rows, depth_groups, depth).t(), groups, width).t()
