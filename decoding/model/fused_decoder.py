"""Runs a Qwen2, Qwen3 or Llama decoder over packed tokens, with the matrices of its checkpoint fused.

Shapes: T packed tokens, W tokens whose output is needed, H query heads, K key-value heads, D head size.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.device_arrays import copy_arrays
from decoding.kv.pool_memory import allocate_zeros
from decoding.model.attention import BlockAttention, DeviceBlock, LayerAttention
from decoding.model.backend import TokenBatch
from decoding.model.decoder_weights import DecoderWeights, FusedLayer
from decoding.model.families import SILU
from decoding.model.invariant_products import multiply_rows
from decoding.model.layer_operators import add_and_norm, multiply_by_silu, rotate_and_store
from decoding.model.packed_products import multiply, multiply_and_add, pack_weight
from decoding.model.segment_attention import SegmentAttention, list_arrays
from decoding.threads import with_helper_threads


class FusedDecoder:
    """Takes the weights of a model without its head, fuses them and runs them.

    has_segments  batches have segments, so there is Triton: `layer_operators` run what is between the products, in
                  float32, with a rotary table in float32. Without segments, and for activations other than SiLU, it
                  is PyTorch's own operations in the dtype of the model.
    is_invariant  the products, too, are a kernel of ours, whose sums have one order (see `numerics`)
    """

    row_counts: ClassVar[tuple[int, ...]] = ()
    """See `HFBackend`: every row costs."""

    def __init__(self, weights: DecoderWeights, *, has_segments: bool = False, is_invariant: bool = False) -> None:
        self.hidden_size, self.num_layers = weights.hidden_size, weights.num_layers
        self.num_heads, self.num_kv_heads, self.head_size = weights.num_heads, weights.num_kv_heads, weights.head_size
        self.scale, self.eps, self.num_weights = weights.scale, weights.eps, weights.num_weights
        self.attention_seconds = 0.0
        self._activation = weights.activation
        self._has_kernels = has_segments and weights.activation_name in SILU
        assert self._has_kernels or not is_invariant, "PyTorch's own products depend on the batch"
        self._multiply = multiply_rows if is_invariant else multiply
        with torch.no_grad():
            self.embedding = weights.take_embedding(weights.place)
            self.final_norm = weights.copy_final_norm()
            self.layers = list(weights.take_layers(weights.place))
        self.rotary = weights.make_rotary(torch.float32 if self._has_kernels else self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.embedding.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = self.embedding.device
        return device

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's K and V in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * self.dtype.itemsize

    def view_layers(self, layers: Sequence[int]) -> FusedDecoder:
        """Returns a decoder of these layers alone, with the same weights; its KV pools have those layers."""
        view = copy.copy(self)
        view.layers = [self.layers[index] for index in layers]
        view.num_layers, view.attention_seconds = len(view.layers), 0.0
        view.num_weights = self.num_weights * len(view.layers) // self.num_layers
        return view

    def pack_weights(self) -> None:
        """Packs the matrices of all layers where that makes products faster, a layer at a time. *Mutates*.

        From then on only this decoder's own operations can read them.
        """
        for index, layer in enumerate(self.layers):
            self.layers[index] = replace(
                layer,
                qkv=pack_weight(layer.qkv),
                out=pack_weight(layer.out),
                gate_up=pack_weight(layer.gate_up),
                down=pack_weight(layer.down),
            )

    def new_kv_pool(self, capacity: int) -> Tensor:
        """Returns `[layers, kv_heads, 1 + capacity, 2 * head_size]`, a token's key and value side by side.

        Heads come before slots, so that gathered slots are already laid out for a product per head.
        """
        shape = (self.num_layers, self.num_kv_heads, capacity + 1, 2 * self.head_size)
        # zeros, not empty: masked keys are multiplied by 0, and 0 * NaN is NaN
        return allocate_zeros(shape, self.dtype, self.device)

    def run_batch(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        """Returns normed hidden states `[W, hidden]`. *Mutates* `pool`. Long rounds on a CPU use helper threads."""
        plan_arrays = [] if batch.segments is None else list_arrays(batch.segments)
        # the copies may run late: nothing writes to the arrays after packing
        tokens_T, positions_T, slots_T, output_indices_W, *on_device = copy_arrays(
            [batch.tokens_T, batch.positions_T, batch.slots_T, batch.logits_indices, *plan_arrays], self.device
        )
        attention: LayerAttention
        if batch.segments is None:
            attention = self._place_blocks(batch)
        else:
            attention = SegmentAttention.from_plan(batch.segments, on_device, self.scale)
        # the indices ascend, so as many as there are tokens means all of them
        indices = None if len(batch.logits_indices) == len(batch.tokens_T) else output_indices_W
        # `positions_T` on the host: its maximum on the device would have to be waited for
        cos_sin = self.rotary.extend_to(int(batch.positions_T.max())).index_select(0, positions_T)
        # only CPU rounds choose their number of threads
        num_weights = self.num_weights if self.device.type == "cpu" else 0
        with with_helper_threads(num_weights, len(tokens_T)):
            return self.forward(tokens_T, cos_sin, slots_T, indices, attention, pool)

    def _place_blocks(self, batch: TokenBatch) -> BlockAttention:
        blocks = [
            DeviceBlock.from_block(
                block,
                num_kv_heads=self.num_kv_heads,
                queries_per_kv=self.num_heads // self.num_kv_heads,
                device=self.device,
                dtype=self.dtype,
            )
            for block in batch.blocks
        ]
        return BlockAttention(blocks, self.scale, batch.recorder)

    def forward(
        self,
        tokens_T: Tensor,
        cos_sin_T2D: Tensor,
        slots_T: Tensor,
        output_indices_W: Tensor | None,
        attention: LayerAttention,
        pool_LKPE: Tensor,
    ) -> Tensor:
        """Returns normed hidden states `[W, hidden]`, all `[T, hidden]` without indices. *Mutates* the pool."""
        x = self.embedding.index_select(0, tokens_T)
        run_layers = self._run_kernels if self._has_kernels else self._run_operations
        return run_layers(x, cos_sin_T2D, slots_T, output_indices_W, attention, pool_LKPE)

    def _run_kernels(
        self,
        x: Tensor,
        cos_sin_T2D: Tensor,
        slots_T: Tensor,
        output_indices_W: Tensor | None,
        attention: LayerAttention,
        pool_LKPE: Tensor,
    ) -> Tensor:
        """Runs the layers with ten kernels each: a product's result is added to the residual by the next norm."""
        last = self.num_layers - 1
        delta: Tensor | None = None
        for index, (layer, kv_KPE) in enumerate(zip(self.layers, pool_LKPE, strict=True)):
            x, normed = add_and_norm(x, delta, layer.attention_norm, self.eps)
            qkv = self._multiply(normed, layer.qkv, None)
            q = rotate_and_store(qkv, layer.qkv_bias, layer.head_norms, cos_sin_T2D, slots_T, kv_KPE, self.eps)
            attended = self._attend(attention, q, kv_KPE)
            if index == last and output_indices_W is not None:
                x, attended = x.index_select(0, output_indices_W), attended.index_select(0, output_indices_W)
            delta = self._multiply(attended, layer.out, layer.out_bias)
            x, normed = add_and_norm(x, delta, layer.mlp_norm, self.eps)
            gate_up = self._multiply(normed, layer.gate_up, layer.gate_up_bias)
            delta = self._multiply(multiply_by_silu(gate_up), layer.down, layer.down_bias)
        return add_and_norm(x, delta, self.final_norm, self.eps)[1]

    def _run_operations(
        self,
        x: Tensor,
        cos_sin_T2D: Tensor,
        slots_T: Tensor,
        output_indices_W: Tensor | None,
        attention: LayerAttention,
        pool_LKPE: Tensor,
    ) -> Tensor:
        """Runs the layers with PyTorch's own operations."""
        cos_sin = cos_sin_T2D[:, :1], cos_sin_T2D[:, 1:]
        last = self.num_layers - 1
        for index, (layer, kv_KPE) in enumerate(zip(self.layers, pool_LKPE, strict=True)):
            attended = self._run_attention(layer, x, cos_sin, slots_T, kv_KPE, attention)
            # after the last attention only the tokens with an output go through the MLP
            if index == last and output_indices_W is not None:
                x, attended = x.index_select(0, output_indices_W), attended.index_select(0, output_indices_W)
            x = multiply_and_add(x, attended, layer.out, layer.out_bias)
            normed = F.rms_norm(x, (self.hidden_size,), layer.mlp_norm, self.eps)
            gate, up = multiply(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            # mul_: the activation's output is a new tensor, `gate` and `up` are views of one
            x = multiply_and_add(x, self._activation(gate).mul_(up), layer.down, layer.down_bias)
        return F.rms_norm(x, (self.hidden_size,), self.final_norm, self.eps)

    def _run_attention(
        self,
        layer: FusedLayer,
        x: Tensor,
        cos_sin: tuple[Tensor, Tensor],
        slots_T: Tensor,
        kv_KPE: Tensor,
        attention: LayerAttention,
    ) -> Tensor:
        # `[T, H + 2 * K, D]`: query heads, then key heads, then value heads
        h, k, d = self.num_heads, self.num_kv_heads, self.head_size
        normed = F.rms_norm(x, (self.hidden_size,), layer.attention_norm, self.eps)
        qkv = multiply(normed, layer.qkv, layer.qkv_bias).view(-1, h + 2 * k, d)
        qk = qkv[:, : h + k]
        # Qwen3 normalises queries and keys per head, before the rotation
        if layer.head_norms is not None:
            q_norm, k_norm = layer.head_norms
            q = F.rms_norm(qk[:, :h], (d,), q_norm, self.eps)
            qk = torch.cat([q, F.rms_norm(qk[:, h:], (d,), k_norm, self.eps)], dim=1)
        cos, sin = cos_sin
        qk = torch.addcmul(qk * cos, qk.roll(d // 2, -1), sin)
        # written before attention reads it: a token sees its own key and, in prompts, those of its batch
        kv_KPE.index_copy_(1, slots_T, torch.cat([qk[:, h:], qkv[:, h + k :]], dim=-1).transpose(0, 1))
        return self._attend(attention, qk[:, :h], kv_KPE)

    def _attend(self, attention: LayerAttention, q_THD: Tensor, kv_KPE: Tensor) -> Tensor:
        begin = time.perf_counter()
        attended = attention.attend(q_THD, kv_KPE)
        self.attention_seconds += time.perf_counter() - begin
        return attended
