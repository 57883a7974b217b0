"""Puppets: models that cost what a real model costs and write what a small one writes.

A puppet has a body, a model of a real shape with random weights, and a brain, the bundled writer. Both read every
token of every round. The head of the body is computed over its whole vocabulary, and then the logits of the brain
replace its own. So texts, accepted drafts and search decisions are the brain's, and seconds and bytes the body's.

Shapes: W output rows, V vocabulary of the body, B vocabulary of the brain, D hidden size of the body.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from decoding.model.backend import TokenBatch
from decoding.model.decoder_choice import explain_uncompiled_dtype
from decoding.model.device_choice import Device, DType, pick_device, pick_dtype
from decoding.model.key_table import KeyTable
from decoding.model.segments import SegmentTiles
from decoding.model.transformers_checkpoint import HFBackend
from decoding.stats import DecoderKind

IMPOSSIBLE = 1e6
"""Taken off the body's own logits, which are near 0: at the highest temperature, 100, their probability is still 0."""
BODY_SCALE = 2.0**-40
"""Makes the body's hidden states too small to count in a distance. A power of two: scaling back gives the same bits."""
WEIGHT_STD = 0.02  # the initial weights of these families; activations stay near 1 through all layers


@dataclass(frozen=True)
class BodyShape:
    """The sizes of a Qwen2 model. With `has_tied_head` the head is the embedding."""

    hidden_size: int
    mlp_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    has_tied_head: bool
    max_positions: int = 32768

    def make_meta_model(self, dtype: torch.dtype) -> Any:
        """Returns a transformers model on the meta device: its weights have shapes and no values."""
        import transformers

        config = transformers.Qwen2Config(
            hidden_size=self.hidden_size,
            intermediate_size=self.mlp_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            vocab_size=self.vocab_size,
            tie_word_embeddings=self.has_tied_head,
            max_position_embeddings=self.max_positions,
        )
        with torch.device("meta"):
            model: Any = transformers.Qwen2ForCausalLM(config)
        return model.to(dtype)

    def count_weights(self) -> int:
        """Returns the number of weights, a tied head counted once."""
        return sum(weights.numel() for weights in self.make_meta_model(torch.bfloat16).parameters())

    def make_model(self, device: torch.device, dtype: torch.dtype) -> Any:
        """Returns a transformers model with random weights, made on the device and nowhere else; norms are 1.

        In any dtype the weights are numbers of bfloat16, as those of the published checkpoints.
        """
        model = self.make_meta_model(dtype).to_empty(device=device)
        # its frequencies are computed, not weights: moving from meta has lost them
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config).to(device)
        model.tie_weights()
        generator = torch.Generator(device).manual_seed(0)
        with torch.no_grad():
            for name, weights in model.named_parameters():
                if "norm" in name:
                    weights.fill_(1.0)
                else:
                    weights.normal_(0.0, WEIGHT_STD, generator=generator)
                    weights.copy_(weights.to(torch.bfloat16))
        return model


SHAPES = {
    "qwen2.5-0.5b": BodyShape(896, 4864, 24, 14, 2, 151936, has_tied_head=True),
    "qwen2.5-1.5b": BodyShape(1536, 8960, 28, 12, 2, 151936, has_tied_head=True),
    "qwen2.5-7b": BodyShape(3584, 18944, 28, 28, 4, 152064, has_tied_head=False),
    "qwen2.5-32b": BodyShape(5120, 27648, 64, 40, 8, 152064, has_tied_head=False),
}
"""The sizes in the published config.json of each model."""
MINIATURE = BodyShape(64, 128, 2, 4, 2, 2000, has_tied_head=True)
"""Too small for conclusions: for tests, under the name `miniature`."""


def find_shape(name: str) -> BodyShape:
    """Returns one of `SHAPES`, or the miniature. Raises: ValueError naming the valid ones."""
    known = SHAPES | {"miniature": MINIATURE}
    if name not in known:
        raise ValueError(f"shape must be one of {', '.join(known)}; got {name}")
    return known[name]


def make_body(
    shape: BodyShape,
    *,
    device: Device = "auto",
    dtype: DType = "auto",
    numerics: str = "fast",
    decoder: str = "auto",
) -> HFBackend:
    """Returns a random model of a shape; dtype `auto` is bfloat16 on CUDA and the faster one on this CPU.

    With decoder=compiled it is the faster one of those that run compiled.

    Raises: ValueError for a device or dtype that there is not.
    """
    target = pick_device(device)
    if dtype == "auto" and target.type == "cpu":
        choices = [torch.float32, torch.bfloat16]
        if decoder == "compiled":  # a brain that runs compiled needs such a body, and not every CPU has tiles
            choices = [choice for choice in choices if explain_uncompiled_dtype(choice) is None]
        torch_dtype = _pick_faster_dtype(shape, choices)
    else:
        torch_dtype = pick_dtype(dtype, target)
    name = str(torch_dtype).removeprefix("torch.")
    model = shape.make_model(target, torch_dtype)
    return HFBackend(model, device=device, dtype=name, numerics=numerics, decoder=decoder, frees_model=True)


def _pick_faster_dtype(shape: BodyShape, choices: Sequence[torch.dtype]) -> torch.dtype:
    """Returns the dtype of `choices` which multiplies 4 rows with the shape's largest matrix of a layer soonest.

    Measured, because it depends on the CPU: bfloat16 halves the bytes, but without instructions of its own it is
    computed many times slower. The best of seven times, which a busy machine disturbs least.
    """

    def measure(dtype: torch.dtype) -> float:
        rows = torch.ones(4, shape.hidden_size, dtype=dtype)
        matrix = torch.ones(shape.hidden_size, 2 * shape.mlp_size, dtype=dtype)
        seconds = []
        for _ in range(7):
            begin = time.perf_counter()
            rows @ matrix
            seconds.append(time.perf_counter() - begin)
        return min(seconds)

    return min(choices, key=measure)


class Puppet:
    """Implements `decoding.model.backend.Backend` by two others, which keep KV for the same slots.

    The logits are `[W, V]`: the brain's, rounded to the body's dtype, and for ids that the brain does not have the
    body's own less `IMPOSSIBLE`. Those have probability 0, so log-probabilities, entropies and what top-p, top-k and
    min-p keep are the brain's alone; but sampling reads and sorts V columns, as for a real model. A NaN of the
    body stays a NaN.

    vocab_size      of the brain: ids that a request may have
    body_width      hidden size of the body
    forward         returns the hidden states of both side by side, in the wider dtype, the body's times `BODY_SCALE`: a
                    search that compares them compares the brain's
    new_kv_pool     returns the body's pool; the brain's lives as long as that one

    Raises: ValueError for a brain that does not fit the body.
    """

    def __init__(self, body: HFBackend, brain: HFBackend, body_width: int) -> None:
        if brain.vocab_size > body.vocab_size:
            raise ValueError(describe_misfit(brain.vocab_size, body.vocab_size))
        if brain.device != body.device:
            raise ValueError(f"body and brain must be on one device; got {body.device} and {brain.device}")
        kinds = [(backend.segment_tiles is None, backend.decoder_kind) for backend in (body, brain)]
        if kinds[0] != kinds[1]:  # both run one batch
            raise ValueError("body and brain must have the same decoder and kind of attention, blocks or segments")
        self.body, self.brain = body, brain
        # a batch is cut into segments once, so that both can run them
        tiles = [backend.segment_tiles for backend in (body, brain) if backend.segment_tiles is not None]
        self.segment_tiles = SegmentTiles(*map(min, zip(*tiles, strict=True))) if tiles else None
        self.vocab_size = brain.vocab_size
        self.max_positions = min(body.max_positions, brain.max_positions)
        self.kv_bytes_per_token = body.kv_bytes_per_token + brain.kv_bytes_per_token
        self.decoder_kind: DecoderKind = body.decoder_kind
        self.row_counts = body.row_counts
        self.device, self.dtype = body.device, body.dtype
        self._body_width = body_width
        self._brain_pools = WeakTensorKeyDictionary()

    @property
    def attention_seconds(self) -> float:
        """See `Backend`; of both."""
        return self.body.attention_seconds + self.brain.attention_seconds

    def new_kv_pool(self, capacity: int) -> Tensor:
        """Returns the body's pool and allocates the brain's."""
        pool = self.body.new_kv_pool(capacity)
        self._brain_pools[pool] = self.brain.new_kv_pool(capacity)
        return pool

    def brain_pool(self, pool: Tensor) -> Tensor:
        """Returns the brain's pool that was made with the body's `pool`."""
        brain_pool: Tensor = self._brain_pools[pool]
        return brain_pool

    @property
    def num_prepared(self) -> int:
        """See `PreparesRounds`; of both."""
        return self.body.num_prepared + self.brain.num_prepared

    def prepare_rounds(self, pool: Tensor, tiles: SegmentTiles, table: KeyTable, rows: int) -> None:
        """See `PreparesRounds`."""
        self.body.prepare_rounds(pool, tiles, table, rows)
        self.brain.prepare_rounds(self.brain_pool(pool), tiles, table, rows)

    @torch.inference_mode()
    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        """See `Backend`."""
        of_body, of_brain = self.body.forward(batch, pool), self.brain.forward(batch, self.brain_pool(pool))
        # one tensor, so that a caller may select rows; the wider dtype holds both without rounding
        wider = torch.promote_types(of_body.dtype, of_brain.dtype)
        return torch.cat([of_body.to(wider) * BODY_SCALE, of_brain.to(wider)], dim=1)

    @torch.inference_mode()
    def apply_head(self, hidden: Tensor) -> Tensor:
        """See `Backend`."""
        logits_WV = self.body.apply_head((hidden[:, : self._body_width] / BODY_SCALE).to(self.body.dtype))
        # contiguous, as a model's own hidden states are
        logits_WB = self.brain.apply_head(hidden[:, self._body_width :].to(self.brain.dtype).contiguous())
        num_tokens = logits_WB.shape[1]
        logits_WV[:, :num_tokens] = logits_WB
        # less, not set: so the result depends on every product of the body's head
        logits_WV[:, num_tokens:] -= IMPOSSIBLE
        return logits_WV


def make_puppet(shape: BodyShape, brain: HFBackend, *, dtype: DType = "auto") -> Puppet:
    """Returns a puppet with a new body of a shape, on the brain's device. Raises: ValueError as `Puppet` does."""
    if brain.vocab_size > shape.vocab_size:  # before the body is made, which takes seconds
        raise ValueError(describe_misfit(brain.vocab_size, shape.vocab_size))
    body = make_body(shape, device=str(brain.device), dtype=dtype, numerics=brain.numerics, decoder=brain.decoder_kind)
    return Puppet(body, brain, shape.hidden_size)


def describe_misfit(num_tokens: int, body_tokens: int) -> str:
    """Returns the error of a vocabulary, a brain's or that of recorded texts, that is larger than the body's."""
    return f"a vocabulary of {num_tokens} tokens does not fit the body's of {body_tokens}"
