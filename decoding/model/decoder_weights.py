"""Holds the weights of a decoder as its checkpoint has them, until the decoder that runs takes them, layer by layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoding.model.families import FAMILIES, LENGTH_DEPENDENT_ROPES
from decoding.model.rotary_table import RotaryTable


@dataclass(frozen=True)
class FusedLayer:
    """One decoder layer; biases may be None. Matrices are `[in, out]`: contiguous, as `addmm` wants them, packed, or as
    `LosslessPlace` has them."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """All matrices of the layer."""
        return self.qkv, self.out, self.gate_up, self.down

    @property
    def head_norms(self) -> tuple[Tensor, Tensor] | None:
        """Weights of the norms per head of queries and of keys, which Qwen3 has."""
        return None if self.q_norm is None or self.k_norm is None else (self.q_norm, self.k_norm)


@dataclass(frozen=True)
class WeightPlace:
    """Where the weights of a model go; None: they stay where they are, as they are."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None

    def move(self, weight: Tensor) -> Tensor:
        """Returns the weight there, the same tensor if it is there already."""
        return weight.detach().to(device=self.device, dtype=self.dtype)

    def move_or_none(self, weight: Tensor | None) -> Tensor | None:
        """Returns the weight there, if there is one."""
        return None if weight is None else self.move(weight)

    def fuse_linears(self, linears: Sequence[torch.nn.Linear]) -> tuple[Tensor, Tensor | None]:
        """Returns the weights of linears of one input side by side, `[in, out]`, and their biases, if they have any.

        Weights go there one at a time: there is never more of a copy than the result and one of them.
        """
        like = self.move(linears[0].weight[:1])
        fused = like.new_empty((like.shape[1], sum(len(linear.weight) for linear in linears)))
        at = 0
        for linear in linears:
            end = at + len(linear.weight)
            fused[:, at:end].copy_(self.move(linear.weight).t())
            at = end
        return fused, self._fuse_biases(linears)

    def _fuse_biases(self, linears: Sequence[torch.nn.Linear]) -> Tensor | None:
        # the linears of one call have a bias all or none
        biases: list[Tensor] = [self.move(linear.bias) for linear in linears if linear.bias is not None]
        return torch.cat(biases) if biases else None


@dataclass(frozen=True)
class LosslessPlace(WeightPlace):
    """The same, but weights of bfloat16 stay so, whatever the dtype: they are half as large, and nothing is lost."""

    def move(self, weight: Tensor) -> Tensor:
        """See `WeightPlace`."""
        stays = weight.dtype == torch.bfloat16
        return weight.detach().to(device=self.device, dtype=torch.bfloat16 if stays else self.dtype)

    def fuse_linears(self, linears: Sequence[torch.nn.Linear]) -> tuple[Tensor, Tensor | None]:
        """See `WeightPlace`; the matrix is a view of `[out, in]`, as it lies in a checkpoint, which may be the one."""
        rows = [self.move(linear.weight) for linear in linears]
        return (rows[0] if len(rows) == 1 else torch.cat(rows)).t(), self._fuse_biases(linears)


class DecoderWeights:
    """The sizes of a model without its head, and its weights until they are taken.

    A checkpoint may be mapped from its file: then a weight is in memory only once it is moved.

    place        device and dtype of the decoder that will run
    frees_model  frees each weight of `model` once it is taken: there is never more than one layer twice. The model
                 cannot be used afterwards

    Raises: ValueError for a family other than those of `families`, sliding-window attention, or rotary embeddings that
    depend on the length of the input (`dynamic`, `longrope`).
    """

    def __init__(self, model: Any, *, place: WeightPlace | None = None, frees_model: bool = False) -> None:
        config = model.config
        if config.model_type not in FAMILIES:
            raise ValueError(f"this engine runs {', '.join(FAMILIES)} models; got model_type {config.model_type!r}")
        if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
            raise ValueError("sliding-window attention is not supported")
        rope = model.rotary_emb.rope_type
        if rope in LENGTH_DEPENDENT_ROPES:
            raise ValueError(f"rotary embeddings of type {rope!r} change with the input's length: not supported")
        first = model.layers[0]
        embedding: Tensor = model.embed_tokens.weight
        self.place = place or WeightPlace()
        self.device = self.place.device or embedding.device
        self.dtype = self.place.dtype or embedding.dtype
        self.hidden_size: int = config.hidden_size
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = config.num_key_value_heads or self.num_heads
        self.head_size: int = getattr(config, "head_dim", None) or self.hidden_size // self.num_heads
        self.mlp_size: int = config.intermediate_size
        self.scale: float = first.self_attn.scaling
        self.eps: float = config.rms_norm_eps
        self.activation_name: str = config.hidden_act
        self.activation: Callable[[Tensor], Tensor] = first.mlp.act_fn
        self._model, self._frees_model = model, frees_model
        matrices = (matrix for layer in model.layers for matrix in _list_matrices(layer))
        self.num_weights = sum(matrix.numel() for matrix in matrices)
        """Number of weights that every token is multiplied with."""

    def iter_matrices(self, num_layers: int | None = None) -> Iterator[Tensor]:
        """Yields the matrices of the first layers, `[out, in]`, in the place where nothing is lost; None: of all."""
        place = self.lossless_place
        for layer in self._model.layers[:num_layers]:
            yield from (place.move(matrix) for matrix in _list_matrices(layer))

    @property
    def lossless_place(self) -> LosslessPlace:
        """The place, but for weights of bfloat16, which stay so."""
        return LosslessPlace(self.place.device, self.place.dtype)

    def take_embedding(self, place: WeightPlace) -> Tensor:
        """Returns the embedding `[tokens, hidden]`, moved to `place`. *Mutates*: there may be none afterwards."""
        embedding = place.move(self._model.embed_tokens.weight)
        if self._frees_model:
            _free_weights(self._model.embed_tokens)
        return embedding

    def take_layers(self, place: WeightPlace) -> Iterator[FusedLayer]:
        """Yields the layers, fused and moved to `place`. *Mutates*: there may be none afterwards."""
        for layer in self._model.layers:
            yield _fuse_layer(layer, place)
            if self._frees_model:
                _free_weights(layer)

    def copy_final_norm(self) -> Tensor:
        """Returns the weight of the norm behind the last layer, in its place."""
        return self.place.move(self._model.norm.weight)

    def make_rotary(self, dtype: torch.dtype) -> RotaryTable:
        """Returns the table of the rotary embedding in this dtype.

        Its frequencies keep theirs: rounded to bfloat16 they turn by a wrong angle, more with every position.
        """
        rotary = copy.deepcopy(self._model.rotary_emb).to(self.device)
        return RotaryTable(rotary, torch.empty((1, self.hidden_size), dtype=dtype, device=self.device))


def copy_unless_fused(name: str, weight: Tensor) -> Tensor:
    """Returns a copy of a weight that is not fused with others later, which a decoder may keep as it is.

    Weights are views of a mapped file, all of which stays mapped as long as there is one.
    """
    is_fused = ".layers." in name and weight.ndim == 2
    return weight if is_fused else weight.clone()


def _list_matrices(layer: Any) -> list[Tensor]:
    attention, mlp = layer.self_attn, layer.mlp
    linears = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    return [linear.weight for linear in (*linears, mlp.gate_proj, mlp.up_proj, mlp.down_proj)]


def _fuse_layer(layer: Any, place: WeightPlace) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, qkv_bias = place.fuse_linears([attention.q_proj, attention.k_proj, attention.v_proj])
    out, out_bias = place.fuse_linears([attention.o_proj])
    gate_up, gate_up_bias = place.fuse_linears([mlp.gate_proj, mlp.up_proj])
    down, down_bias = place.fuse_linears([mlp.down_proj])
    q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return FusedLayer(
        place.move(layer.input_layernorm.weight), qkv, qkv_bias,
        place.move_or_none(getattr(q_norm, "weight", None)), place.move_or_none(getattr(k_norm, "weight", None)),
        out, out_bias, place.move(layer.post_attention_layernorm.weight),
        gate_up, gate_up_bias, down, down_bias,
    )  # fmt: skip


def _free_weights(module: torch.nn.Module) -> None:
    """Replaces the weights of a module by tensors without memory."""
    module.to_empty(device=torch.device("meta"))
