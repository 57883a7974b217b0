"""Runs a transformers checkpoint as a Backend: packed tokens in, hidden states and the head's output out.

The forward pass is that of `fused_decoder`, over the weights of the checkpoint, or for small models on a CPU that of
`compiled_decoder`; equality with transformers is tested. Measured for `fused_decoder` at the bundled size, CPU, one
thread of a busy machine, calls paired back to back, median of 200: the modules of transformers take 1.7-1.8 times as
long for 1 token, 1.5-1.7 for 4 and 16, 1.5 for 64 (quartiles within 0.2, once 0.5). The engine benchmark measures it
again as `modules_vs_fused`. The gain shrinks as the matrix products grow; large models do not have it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from decoding.model.attention_choice import picks_graphs, picks_segments
from decoding.model.backend import ATTENTION_CHOICES, DECODER_CHOICES, NUMERICS_CHOICES, TokenBatch
from decoding.model.decoder_choice import pick_decoder
from decoding.model.decoder_weights import DecoderWeights, WeightPlace, copy_unless_fused
from decoding.model.device_choice import Device, DType, pick_device, pick_dtype
from decoding.model.fused_decoder import FusedDecoder
from decoding.model.invariant_products import require_stable_products
from decoding.model.linear_heads import (
    Head,
    LinearFactory,
    compile_linear_layer,
    make_head,
    make_invariant_layer,
    make_linear_layer,
    replace_linears,
)
from decoding.model.numerics import pick_invariant_path, require_invariant_model
from decoding.model.segment_attention import pick_tiles
from decoding.model.segments import SegmentTiles
from decoding.model.workspace import DecoderSizes, RoundSize, Workspace, estimate_workspace
from decoding.threads import with_helper_threads
from decoding.validation import require_choice

if TYPE_CHECKING:
    from decoding.model.compiled_decoder import CompiledDecoder, CompiledHead  # needs Numba
    from decoding.model.key_table import KeyTable
    from decoding.model.round_graphs import RoundGraphs  # a CPU need not know of graphs


class HFBackend:
    """Implements `decoding.model.backend.Backend` for a model of the Qwen2, Qwen3 and Llama families.

    model      `*ForCausalLM`, `*ForTokenClassification`, or a bare decoder (then `head` says what to make of
               its hidden states; without one they are the output)
    head       replaces the model's own head: `[W, hidden] -> [W, outputs]`, on the same device and in the same dtype
    decoder    see `pick_decoder`; `decoder_kind` is what was picked
    attention  see `picks_segments`; segments run in the eager decoder
    graphs     see `picks_graphs` and `round_graphs`
    numerics   invariant: the same bits for a token whatever else is in its batch (see `numerics`), logits in float32;
               fast: they may differ by rounding
    frees_model  frees the weights of `model` layer by layer, as they are copied; it cannot be used afterwards
    head_ids     keeps only these outputs of the model's own head, in this order; None: all

    Raises: ValueError for a setting or a model that it does not have.
    """

    def __init__(
        self,
        model: Any,
        *,
        head: Head | None = None,
        device: Device = "auto",
        dtype: DType = "auto",
        decoder: str = "auto",
        attention: str = "auto",
        graphs: str = "auto",
        numerics: str = "fast",
        frees_model: bool = False,
        head_ids: Sequence[int] | None = None,
    ) -> None:
        target, target_dtype = pick_device(device), pick_dtype(dtype, pick_device(device))
        # before the weights are copied and fused: a wrong setting is refused at once
        require_choice("decoder", decoder, DECODER_CHOICES)
        require_choice("attention", attention, ATTENTION_CHOICES)
        require_choice("numerics", numerics, NUMERICS_CHOICES)
        is_invariant = numerics == "invariant"
        if is_invariant:
            require_invariant_model(vars(model.config))
            decoder, attention = pick_invariant_path(decoder, attention, target, target_dtype)
        has_segments = picks_segments(attention, target, target_dtype)
        if attention == "segments" and decoder == "compiled":
            raise ValueError("decoder=compiled has attention of its own; set attention=blocks or decoder=auto")
        has_graphs = picks_graphs(graphs, target, has_segments)
        if is_invariant and has_segments:
            require_stable_products(target, target_dtype)
        place = WeightPlace(target, target_dtype)
        trunk = getattr(model, "model", model)
        linear = getattr(model, "lm_head", None) or getattr(model, "score", None)
        # before the embedding is freed
        is_tied = linear is not None and linear.weight is getattr(getattr(trunk, "embed_tokens", None), "weight", None)
        weights = DecoderWeights(trunk, place=place, frees_model=frees_model)
        config = model.config
        self.vocab_size: int = config.vocab_size
        self.hidden_size: int = weights.hidden_size
        self.max_positions: int = config.max_position_embeddings
        self.dtype, self.device, self.numerics = weights.dtype, weights.device, numerics
        num_head_weights = linear.weight.numel() if linear is not None and head is None else 0
        self.decoder_kind = pick_decoder(
            "eager" if has_segments and decoder == "auto" else decoder, weights, num_head_weights
        )
        self.segment_tiles: SegmentTiles | None = None
        if has_segments:
            per_kv = weights.num_heads // weights.num_kv_heads
            self.segment_tiles = pick_tiles(per_kv, weights.head_size, weights.dtype, is_aligned=is_invariant)
        self._graphs: RoundGraphs | None = None
        self.decoder: FusedDecoder | CompiledDecoder
        if self.decoder_kind == "compiled":
            self.decoder = _compile_decoder(weights)
        else:
            fused = FusedDecoder(weights, has_segments=has_segments, is_invariant=is_invariant and has_segments)
            if not has_segments:
                fused.pack_weights()
            self.decoder, self._graphs = fused, _record_rounds(fused) if has_graphs else None
        self._times_attention = self.device.type == "cpu"
        # only CPU rounds choose their number of threads, and the compiled head does so by itself
        uses_helpers = self.device.type == "cpu" and self.decoder_kind == "eager"
        self._num_head_weights = num_head_weights if uses_helpers else 0
        # without a head of its own the model is a bare decoder
        tied = self.decoder.embedding if is_tied else None
        make_linear: LinearFactory = make_linear_layer
        if self.decoder_kind == "compiled":
            make_linear, place = partial(compile_linear_layer, dtype=self.dtype), weights.lossless_place
        elif is_invariant:
            make_linear = make_invariant_layer
        self._has_compiled_head = self.decoder_kind == "compiled" and head is None
        if head is None:
            self._head = make_head(linear, place, tied, make_linear, head_ids)
        else:
            is_stable = is_invariant or self.decoder_kind == "compiled"
            self._head = replace_linears(head, make_linear, must=is_invariant) if is_stable else head
        self._logit_bytes = 4 if is_invariant else None
        self._run_batch = self.decoder.run_batch if self._graphs is None else self._graphs.run_batch
        self._sizes = DecoderSizes(
            weights.hidden_size, weights.num_heads, weights.num_kv_heads, weights.head_size, weights.mlp_size,
            self.vocab_size, self.dtype.itemsize,
        )  # fmt: skip

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        *,
        kind: Literal["lm", "classifier", "hidden"] = "lm",
        head: Head | None = None,
        device: Device = "auto",
        dtype: DType = "auto",
        decoder: str = "auto",
        attention: str = "auto",
        graphs: str = "auto",
        numerics: str = "fast",
        head_ids: Sequence[int] | None = None,
    ) -> HFBackend:
        """Loads a folder or a hub id; `classifier` has a token-classification head, `hidden` is the bare decoder."""
        import transformers

        auto = {
            "lm": transformers.AutoModelForCausalLM,
            "classifier": transformers.AutoModelForTokenClassification,
            "hidden": transformers.AutoModel,
        }[kind]
        pick_dtype(dtype, pick_device(device))  # a wrong setting is refused before anything is read
        # as it is in its files: the decoder that takes the weights converts them, one at a time
        model = auto.from_pretrained(path, dtype="auto")
        for name, weight in model.named_parameters():
            weight.data = copy_unless_fused(name, weight.data)
        return cls(
            model,
            head=head,
            device=device,
            dtype=dtype,
            decoder=decoder,
            attention=attention,
            graphs=graphs,
            numerics=numerics,
            frees_model=True,
            head_ids=head_ids,
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's K and V in all layers."""
        return self.decoder.kv_bytes_per_token

    @property
    def attention_seconds(self) -> float:
        """Seconds in attention; 0 on CUDA, where the clock would measure the launches only, and when compiled."""
        return self.decoder.attention_seconds if self._times_attention else 0.0

    def new_kv_pool(self, capacity: int) -> Tensor:
        """Returns K and V of slots `[0, capacity]`, all zeros, in the layout of the decoder."""
        return self.decoder.new_kv_pool(capacity)

    @property
    def num_layers(self) -> int:
        """Number of layers, which `view_layers` selects from."""
        return self.decoder.num_layers

    def view_layers(self, layers: Sequence[int]) -> HFBackend:
        """Returns a backend of these layers alone, in this order, with the same weights and head and without graphs.

        Its KV pools have these layers only. Raises: ValueError for no layer, or one that there is not.
        """
        if not layers or not all(0 <= layer < self.num_layers for layer in layers):
            raise ValueError(f"layers must be some of the {self.num_layers} of the model, got {list(layers)}")
        view = copy.copy(self)
        view.decoder = self.decoder.view_layers(layers)
        view._run_batch, view._graphs = view.decoder.run_batch, None
        return view

    @property
    def compiled_parts(self) -> tuple[CompiledDecoder, CompiledHead] | None:
        """The decoder and the head, where compiled loops can run both."""
        if self.decoder_kind != "compiled":
            return None
        # here: it needs Numba, which may be absent
        from decoding.model.compiled_decoder import CompiledDecoder, CompiledHead

        # a bare decoder has no head, and another one may have any
        if not isinstance(self.decoder, CompiledDecoder) or not isinstance(self._head, CompiledHead):
            return None
        return (self.decoder, self._head) if self.decoder.fits_loops else None

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Counts of rows, ascending, up to each of which a round takes nearly as long; empty where each row costs.

        To those of CUDA graphs rows are filled up, and tiles of a CPU have as many lines.
        """
        return self._graph_rows or self.decoder.row_counts

    @property
    def _graph_rows(self) -> tuple[int, ...]:
        if self._graphs is None:
            return ()
        # here: a CPU need not know of graphs
        from decoding.model.round_graphs import ROW_COUNTS

        return ROW_COUNTS

    def estimate_workspace(self, largest: RoundSize, *, float_copies: int) -> Workspace:
        """Returns what the largest round takes on a GPU besides weights and KV; `float_copies` as in `workspace`."""
        graph_rows = self._graph_rows[-1] if self._graphs is not None else 0
        split_keys = None if self.segment_tiles is None else self.segment_tiles.num_keys
        return estimate_workspace(
            self._sizes,
            largest,
            float_copies=float_copies,
            split_keys=split_keys,
            graph_rows=graph_rows,
            logit_bytes=self._logit_bytes,
        )

    @property
    def num_prepared(self) -> int:
        """See `PreparesRounds`: CUDA graphs recorded."""
        return 0 if self._graphs is None else self._graphs.num_recorded

    @torch.inference_mode()
    def prepare_rounds(self, pool: Tensor, tiles: SegmentTiles, table: KeyTable, rows: int) -> None:
        """See `PreparesRounds`: records CUDA graphs."""
        # keys of aligned splits are in no table: how many a round lists grows with its context
        if self._graphs is not None and not tiles.is_aligned:
            self._graphs.record_ahead(pool, tiles, table.open_on(self.device), rows)

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        # compiled code records nothing: to enter and leave the mode takes a tenth of a small round
        if self.decoder_kind == "compiled":
            return self._run_batch(batch, pool)
        return self._run_eager_batch(batch, pool)

    def apply_head(self, hidden: Tensor) -> Tensor:
        return self._head(hidden) if self._has_compiled_head else self._apply_eager_head(hidden)

    @torch.inference_mode()
    def _run_eager_batch(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        return self._run_batch(batch, pool)

    @torch.inference_mode()
    def _apply_eager_head(self, hidden: Tensor) -> Tensor:
        with with_helper_threads(self._num_head_weights, len(hidden)):
            return self._head(hidden)


def _compile_decoder(weights: DecoderWeights) -> CompiledDecoder:
    # here: it needs Numba, which may be absent
    from decoding.model.compiled_decoder import CompiledDecoder

    return CompiledDecoder(weights)


def _record_rounds(decoder: FusedDecoder) -> RoundGraphs:
    # here: a CPU need not know of graphs
    from decoding.model.round_graphs import CudaGraphRecorder, RoundGraphs

    return RoundGraphs(decoder, CudaGraphRecorder(decoder.device))
