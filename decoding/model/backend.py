"""What a model must do for this layer: packed rows in, hidden states out, K and V kept in numbered pages.

A *row* is one token fed in one forward pass. All arrays are numpy, int64 unless said otherwise.

Shapes: T packed rows, W wanted rows; per attention block G groups of B sequences with R rows each
(N = G * B), S keys shared by a group, P private keys of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class AttentionBlock:
    """Rows `[first, first + count)` of a batch, attended together.

    Every row of group g sees all of `shared_GS[g]` (read once per group) and, of its own sequence's
    `private_NP[n]`, the pages where `visible_NRP` says so, its own page among them. The rows' pages have
    been written before they are read. Entries beyond a group's or a sequence's own length are the scratch
    page and invisible.

    shared_len_G  keys of each group that count
    kept          flat `[N * R]` positions of the real rows, in packed order; None when none is padding
    """

    first: int
    count: int
    shared_GS: Ints
    shared_len_G: Ints
    private_NP: Ints
    visible_NRP: Bools
    kept: Ints | None = None


@dataclass(frozen=True)
class RowBatch:
    """One forward pass. `slots_T` are the pages that take the rows' K and V; `wanted_W` index the rows to return."""

    tokens_T: Ints
    positions_T: Ints
    slots_T: Ints
    wanted_W: Ints
    blocks: tuple[AttentionBlock, ...]


class Backend(Protocol):
    """A model. One backend may serve several pools: a generator's and a reader's."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def page_bytes(self) -> int:
        """K and V of one token, all layers."""
        ...

    @property
    def attention_seconds(self) -> float:
        """Running total spent in attention; 0 where it cannot be told apart."""
        ...

    def new_pool(self, pages: int) -> Any:
        """Room for K and V in pages `[0, pages]`, page 0 being scratch. Finite from the start."""
        ...

    def forward(self, batch: RowBatch, pool: Any) -> Any:
        """Hidden states `[W, hidden]` of the wanted rows. *Mutates* `pool` at `batch.slots_T`."""
        ...

    def head(self, hidden: Any) -> Any:
        """The head's output `[W, outputs]` as a torch tensor: logits of a language model, scores of a reward model."""
        ...
