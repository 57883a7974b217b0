"""Reads single probabilities of a round's distributions, and draws tokens from them, where the logits are.

A rejection rule on a GPU needs both, and never the `[W, V]` numbers themselves. As on the CPU, probabilities are of
float64 and add up to one, and a token is the first whose cumulative sum is above a uniform number.

Shapes: W logits rows, V vocabulary, R of the rows, N ids of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.device_arrays import copy_numbers

Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

_CHUNK = 1 << 23
"""Probabilities that are in memory at a time, some 200 MB: rows of a vocabulary of 152 thousand are 55 of them."""


@dataclass(frozen=True)
class IdsOfRows:
    """Some ids of each of R rows: `ids_N` are those of the first row, then those of the second."""

    rows_R: Ints
    counts_R: Ints
    ids_N: Ints

    @classmethod
    def collect(cls, rows: Sequence[int], ids: Sequence[Ints]) -> IdsOfRows:
        """Collects the ids of each row."""
        counts = np.array([len(of_row) for of_row in ids], dtype=np.int64)
        return cls(np.array(rows, dtype=np.int64), counts, np.concatenate([np.zeros(0, dtype=np.int64), *ids]))


def read_probabilities(log_p_WV: Tensor, listed: IdsOfRows) -> tuple[Tensor, Tensor]:
    """Returns the probabilities of ids, float64 `[N]`, and of each row those of all other ids together, `[R]`."""
    p_N, others_R = [], []
    for p_RV, _, owners_N, ids_N, _ in _iterate_chunks(log_p_WV, listed):
        p_N.append(p_RV[owners_N, ids_N])
        # not the difference from one: it would be a rounding error where there is nothing else
        p_RV[owners_N, ids_N] = 0.0
        others_R.append(p_RV.sum(-1))
    return torch.cat(p_N), torch.cat(others_R)


def draw_tokens(
    log_p_WV: Tensor, listed: IdsOfRows, weights_N: Doubles, scales_R: Doubles, uniforms_R: Doubles
) -> Tensor:
    """Returns a token of each row, int64 `[R]`, by its uniform number: never one whose weight is 0.

    weights_N   weights of the listed ids
    scales_R    of a row: what the probabilities of its other ids are multiplied with
    """
    weights, scales, uniforms = copy_numbers([weights_N, scales_R, uniforms_R], log_p_WV.device)
    tokens_R = []
    for weights_RV, rows, owners_N, ids_N, pairs in _iterate_chunks(log_p_WV, listed):
        weights_RV *= scales[rows, None]
        weights_RV[owners_N, ids_N] = weights[pairs]
        # a GPU adds in another order at each id, so sums may sink by a rounding error where nothing is added
        cumulative_RV = weights_RV.cumsum(-1).masked_fill_(weights_RV <= 0, -torch.inf)
        total_R = cumulative_RV.amax(-1)
        threshold_R = torch.minimum(uniforms[rows] * total_R, total_R.nextafter(torch.zeros_like(total_R)))
        # of equal numbers argmax takes the first
        tokens_R.append((cumulative_RV > threshold_R[:, None]).to(torch.uint8).argmax(-1))
    return torch.cat(tokens_R)


def _iterate_chunks(log_p_WV: Tensor, listed: IdsOfRows) -> Iterator[tuple[Tensor, slice, Tensor, Tensor, slice]]:
    """Yields probabilities of some rows, and which of R they are; of each id its row here, itself, and which of N."""
    most = max(1, _CHUNK // log_p_WV.shape[1])
    owners_N = np.repeat(np.arange(len(listed.rows_R), dtype=np.int64) % most, listed.counts_R)
    rows_R, owners, ids = copy_numbers([listed.rows_R, owners_N, listed.ids_N], log_p_WV.device)
    ends = [0, *np.cumsum(listed.counts_R).tolist()]
    for first in range(0, len(listed.rows_R), most):
        rows = slice(first, min(first + most, len(listed.rows_R)))
        pairs = slice(ends[rows.start], ends[rows.stop])
        p_RV = log_p_WV[rows_R[rows]].double().exp_()
        yield p_RV.div_(p_RV.sum(-1, keepdim=True)), rows, owners[pairs], ids[pairs], pairs
