"""Defines what the engine needs of a model: packed tokens in, hidden states out, K and V kept in numbered slots.

All arrays of a batch are numpy, int64 unless stated otherwise.

Shapes: T packed tokens, W tokens whose output is needed; per attention block G groups of B sequences with R rows each
(N = G * B), S keys shared by a group, P private keys of a sequence, U of them new. A row is a token's place in a
padded block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from decoding.kv.slots import Slots
from decoding.model.segments import SegmentPlan, SegmentTiles
from decoding.stats import DecoderKind

if TYPE_CHECKING:
    # for annotations only: scheduling and packing import this module and need no torch
    from torch import Tensor

    from decoding.model.attention_recorder import AttentionRecorder
    from decoding.model.compiled_decoder import CompiledDecoder, CompiledHead
    from decoding.model.key_table import KeyTable

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Records = npt.NDArray[np.void]
DECODER_CHOICES = ("auto", "compiled", "eager")
"""Values of the setting `decoder`."""
ATTENTION_CHOICES = ("auto", "blocks", "segments")
"""Values of the setting `attention`."""
GRAPHS_CHOICES = ("auto", "always", "never")
"""Values of the setting `graphs`."""
NUMERICS_CHOICES = ("fast", "invariant")
"""Values of the setting `numerics`."""


@dataclass(frozen=True)
class AttentionBlock:
    """Tokens `[first, first + count)` of a batch, attended together.

    Every row of group g sees all keys of `shared[g]` (read once per group). Of the keys of its own sequence,
    `private[n]`, it sees all old ones and of the last `num_new_N[n]` those where `visible_NRU` is true, its own among
    them. The rows' slots are written before they are read. A padding sequence has one key, the scratch slot.

    Slots are views, not copies: making a block costs nothing for keys of earlier passes.

    real_rows     flat `[N * R]` places of the tokens, in packed order; None when no row is padding
    """

    first: int
    count: int
    shared: Sequence[Slots]
    private: Sequence[Slots]
    num_new_N: Ints
    visible_NRU: Bools
    real_rows: Ints | None = None

    def find_visible(self) -> Bools:
        """Returns bool `[N, R, P]`: which private keys each row sees; those beyond a sequence's own it does not."""
        old_N = np.array([len(slots) for slots in self.private]) - self.num_new_N
        num_sequences, num_rows, _ = self.visible_NRU.shape
        visible_NRP = np.empty((num_sequences, num_rows, max(map(len, self.private))), dtype=np.bool_)
        # contexts of thousands of keys differ in their last ones: the others are filled, not compared
        least = int(old_N.min())
        visible_NRP[:, :, :least] = True
        visible_NRP[:, :, least:] = np.arange(least, visible_NRP.shape[2]) < old_N[:, None, None]
        for n, (old, new) in enumerate(zip(old_N.tolist(), self.num_new_N.tolist(), strict=True)):
            visible_NRP[n, :, old : old + new] = self.visible_NRU[n, :, :new]
        return visible_NRP


class KeyLists(NamedTuple):
    """Lists of keys: slots of sequences, slots of draft nodes, and which of both each token sees (`KEYS_RECORD`)."""

    key_slots: Slots
    extra_slots: Slots
    keys_T: Records


@dataclass(frozen=True)
class TokenBatch:
    """The tokens of one forward pass, and what they attend to: segments where the backend has tiles for them, lists for
    a compiled decoder, or blocks.

    slots_T         slots that take the tokens' K and V
    logits_indices  `[W]`, the packed tokens whose output is needed, ascending
    recorder        records attention, where a policy of eviction needs it; the eager decoder over blocks can
    """

    tokens_T: Ints
    positions_T: Ints
    slots_T: Ints
    logits_indices: Ints
    blocks: tuple[AttentionBlock, ...] = ()
    segments: SegmentPlan | None = None
    lists: KeyLists | None = None
    recorder: AttentionRecorder | None = None


class Backend(Protocol):
    """A model with its weights. One backend may serve several KV pools, such as an engine's and a reader's."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's K and V in all layers."""
        ...

    @property
    def segment_tiles(self) -> SegmentTiles | None:
        """The largest segments, if batches are to have segments; None for blocks."""
        ...

    @property
    def decoder_kind(self) -> DecoderKind: ...
    @property
    def attention_seconds(self) -> float:
        """Seconds spent in attention since the backend was made; 0 where they cannot be measured separately."""
        ...

    def new_kv_pool(self, capacity: int) -> Tensor:
        """Allocates K and V for slots `[0, capacity]`, slot 0 being scratch. All values are finite from the start."""
        ...

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        """Returns hidden states `[W, hidden]` at `logits_indices`. *Mutates* `pool` at `slots_T`."""
        ...

    def apply_head(self, hidden: Tensor) -> Tensor:
        """Returns the head's output `[W, outputs]`: logits of a language model, scores of a reward model."""
        ...


@runtime_checkable
class RunsInLoops(Protocol):
    """A backend whose decoder and head compiled loops can run, without a call from Python for each pass."""

    @property
    def compiled_parts(self) -> tuple[CompiledDecoder, CompiledHead] | None:
        """Both; None where they are not compiled."""
        ...


@runtime_checkable
class PreparesRounds(Protocol):
    """A backend that makes something for rounds of a new size, as CUDA graphs, which takes longer than a round."""

    @property
    def num_prepared(self) -> int:
        """How often it did so: a round in which that happened says nothing about the time of rounds."""
        ...

    def prepare_rounds(self, pool: Tensor, tiles: SegmentTiles, table: KeyTable, rows: int) -> None:
        """Makes it for rounds over a pool with up to so many rows, as far as it can know their sizes. *Mutates*.

        tiles, table  of the plans of these rounds
        """
        ...
