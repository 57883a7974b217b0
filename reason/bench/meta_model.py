"""Runs the engine's decoder over a model of a real size whose weights have shapes and no values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.model.backend import NUMERICS_CHOICES, TokenBatch
from decoding.model.decoder_weights import DecoderWeights
from decoding.model.fused_decoder import FusedDecoder
from decoding.model.invariant_products import multiply_rows
from decoding.model.segment_attention import pick_tiles
from decoding.model.segments import SegmentTiles
from decoding.stats import DecoderKind
from decoding.validation import require_choice
from reason.bench.puppet import BodyShape


class MetaBackend:
    """Implements `decoding.model.backend.Backend` on the meta device, in bfloat16: the engine's eager decoder.

    attention  `blocks` or `segments`
    numerics   `fast`, or over segments `invariant`

    Raises: ValueError for another attention, or numerics that it does not have.
    """

    attention_seconds = 0.0
    decoder_kind: DecoderKind = "eager"

    def __init__(self, shape: BodyShape, *, attention: str = "segments", numerics: str = "fast") -> None:
        require_choice("attention", attention, ("blocks", "segments"))
        require_choice("numerics", numerics, NUMERICS_CHOICES if attention == "segments" else NUMERICS_CHOICES[:1])
        self._is_invariant = numerics == "invariant"
        model = shape.make_meta_model(torch.bfloat16).requires_grad_(False)
        weights, has_segments = DecoderWeights(model.model), attention == "segments"
        self.decoder = FusedDecoder(weights, has_segments=has_segments, is_invariant=self._is_invariant)
        self.head: Tensor = model.lm_head.weight.detach()
        per_kv = self.decoder.num_heads // self.decoder.num_kv_heads
        self.segment_tiles: SegmentTiles | None = None
        if has_segments:
            self.segment_tiles = pick_tiles(
                per_kv, self.decoder.head_size, self.decoder.dtype, is_aligned=self._is_invariant
            )
        self.vocab_size, self.max_positions = shape.vocab_size, shape.max_positions
        self.decoder.rotary.extend_to(shape.max_positions)  # before any round, as in an engine that has run for a while

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's K and V in all layers."""
        return self.decoder.kv_bytes_per_token

    def new_kv_pool(self, capacity: int) -> Tensor:
        """Returns K and V of slots `[0, capacity]`."""
        return self.decoder.new_kv_pool(capacity)

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        """Returns hidden states `[W, hidden]`."""
        return self.decoder.run_batch(batch, pool)

    def apply_head(self, hidden: Tensor) -> Tensor:
        """Returns logits `[W, vocab_size]`."""
        if self._is_invariant:
            return multiply_rows(hidden, self.head.t(), None, in_float32=True)
        return F.linear(hidden, self.head)

    def iter_round_weights(self) -> Iterator[Tensor]:
        """Yields the weights that every round reads whole: all but an embedding that is not the head's, too."""
        for layer in self.decoder.layers:
            values = (getattr(layer, entry.name) for entry in fields(layer))
            yield from (value for value in values if isinstance(value, Tensor))
        yield self.decoder.final_norm
        yield self.head
