"""Compiles the loops of drafts without a model, in the process that `compiling_process` starts."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decoding.compiled import note_compiled
from decoding.compiling_process import ENDED, are_drafts_optional

if TYPE_CHECKING:
    from torch import Tensor

    from decoding.model.backend import TokenBatch
    from decoding.model.segments import SegmentTiles
    from decoding.round import Speculation
    from decoding.stats import DecoderKind

_LIKELY = 4  # tokens, so that n-grams return


def may_begin_without(loops: str) -> bool:
    """Returns whether rounds may begin before the process has ended, which compiles all of these loops but layers.

    `loops` is a name by `warmup_profile.name_loops`.
    """
    from decoding.warmup_profile import name_loops

    return are_drafts_optional() and loops == name_loops(NoModel(), _list_parts())


def compile_drafts() -> None:
    """Compiles the loops of rounds with drafts; first parts of the layers, and what rounds without drafts need.

    The process that starts this one needs these before the others, but not before they are compiled: it finds them.
    """
    # here: the process that starts this one does not need it yet
    from decoding.model.compiled_layers import compile_parts

    gc.disable()  # a tenth of the time
    compile_parts()
    # after that: they import PyTorch, which takes a second
    from decoding.round import Speculation
    from decoding.warmup_profile import compile_loops

    backend = NoModel()
    for parts in (Speculation(), _list_parts()):
        compile_loops(backend, parts)
    note_compiled(ENDED)


def _list_parts() -> Speculation:
    """Returns the parts of rounds whose loops are compiled: those of `speculation=stand`."""
    from decoding.round import Speculation
    from decoding.speculation.controllers.throughput import ThroughputController
    from decoding.speculation.drafters.stand import Stand
    from decoding.speculation.drafters.tree_drafter import TreeDrafter

    return Speculation(TreeDrafter(Stand()), ThroughputController())


@dataclass(frozen=True)
class NoModel:
    """Implements `Backend` without layers: a few tokens are equally likely everywhere."""

    vocab_size: int = 64
    max_positions: int = 4096
    kv_bytes_per_token: int = 4
    segment_tiles: SegmentTiles | None = None
    decoder_kind: DecoderKind = "compiled"
    attention_seconds: float = 0.0

    def new_kv_pool(self, capacity: int) -> Tensor:
        import torch

        return torch.zeros(capacity + 1)

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        import torch

        return torch.zeros(len(batch.logits_indices), 1)

    def apply_head(self, hidden: Tensor) -> Tensor:
        logits = hidden.new_zeros(len(hidden), self.vocab_size)
        logits[:, _LIKELY:] = -9.0
        return logits
