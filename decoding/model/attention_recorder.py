"""Records how much the tokens of a round attend to each key, as a mean over layers and heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from decoding.model.backend import AttentionBlock

Floats = npt.NDArray[np.float32]


class AttentionRecorder:
    """Sums up the attention of one batch, layer by layer. Shapes as in `decoding.model.attention`."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}  # by block, `[N, R, S + P]`
        self._num_layers: dict[int, int] = {}

    def add_weights(self, block: int, weights: Tensor, num_sequences: int, num_rows: int) -> None:
        """Adds one layer of a block. *Mutates*.

        weights  `[K * N, R * Q, S + P]`, each query's sum to 1: shared keys come before private ones
        """
        each = weights.view(-1, num_sequences, num_rows, weights.shape[1] // num_rows, weights.shape[2])
        mean = each.float().mean(dim=(0, 3))
        self._sums[block] = mean if block not in self._sums else self._sums[block] + mean
        self._num_layers[block] = self._num_layers.get(block, 0) + 1

    def iter_sequences(self, blocks: Sequence[AttentionBlock]) -> Iterator[Floats]:
        """Yields the attention of each sequence, in the order of its tokens in the batch, float32 `[rows, keys]`.

        Keys are in the order of the sequence's slots, with those of this round, draft nodes included, last.
        """
        for number, block in enumerate(blocks):
            num_sequences, num_rows, _ = block.visible_NRU.shape
            mean_NRK = (self._sums[number] / self._num_layers[number]).cpu().numpy()
            most_shared = max(map(len, block.shared))
            places = np.arange(num_sequences * num_rows) if block.real_rows is None else block.real_rows
            counts_N = np.bincount(places // num_rows, minlength=num_sequences)
            for n, count in enumerate(counts_N.tolist()):
                if count:  # others are padding
                    rows = mean_NRK[n, :count]
                    shared = len(block.shared[n * len(block.shared) // num_sequences])
                    private = rows[:, most_shared : most_shared + len(block.private[n])]
                    yield np.concatenate([rows[:, :shared], private], axis=1)
