"""Logits to tokens: temperature, then top-k, top-p, min-p, then the position's Gumbel noise.

The token is `argmax(log p + g)`, which is a draw from `p`; temperature 0 is the plain argmax.
Filters are per row; a filter that is off for every row costs nothing.

Shapes: T rows, V vocabulary, C surviving candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.core import SamplingParams
from decoding.noise import gumbel, row_keys

_FEW = 1024  # up to this many candidates a partial sort is cheaper than a full one


@dataclass(frozen=True)
class SamplingRows:
    """The sampling parameters of T rows as arrays, and their noise keys."""

    temperature_T: npt.NDArray[np.float32]
    top_k_T: npt.NDArray[np.int64]
    top_p_T: npt.NDArray[np.float32]
    min_p_T: npt.NDArray[np.float32]
    keys_T2: npt.NDArray[np.int32]

    @classmethod
    def of(
        cls, params: Sequence[SamplingParams], seeds: Sequence[int], positions: Sequence[int] | npt.NDArray[Any]
    ) -> SamplingRows:
        """`positions` are those of the tokens to be chosen, not of the rows that predict them."""
        return cls(
            np.array([p.temperature for p in params], dtype=np.float32),
            np.array([p.top_k for p in params], dtype=np.int64),
            np.array([p.top_p for p in params], dtype=np.float32),
            np.array([p.min_p for p in params], dtype=np.float32),
            row_keys(seeds, positions),
        )


def sample(logits_TV: Tensor, rows: SamplingRows) -> Tensor:
    """The chosen tokens, int64 `[T]`."""
    logits_TV = logits_TV.float()
    warm = rows.temperature_T > 0
    if not warm.any():
        return logits_TV.argmax(-1)
    scaled_TV = _scaled(logits_TV, rows)
    filtered = bool(((rows.top_k_T > 0) | (rows.top_p_T < 1) | (rows.min_p_T > 0))[warm].any())
    ids, scores = _candidates(scaled_TV, rows) if filtered else (None, scaled_TV)
    scores = scores + _noise(scores, ids, rows)
    best_T1 = scores.argmax(-1, keepdim=True)
    return (best_T1 if ids is None else ids.gather(1, best_T1))[:, 0]


def processed_log_probs(logits_TV: Tensor, rows: SamplingRows) -> Tensor:
    """float32 `[T, V]`: the distribution a row is sampled from, for rules that need it whole.

    Filtered ids have `-inf`. A temperature 0 row puts everything on its argmax.
    """
    logits_TV = logits_TV.float()
    ids_TC, scores_TC = _candidates(_scaled(logits_TV, rows), rows)
    full_TV = torch.full_like(logits_TV, -torch.inf).scatter_(1, ids_TC, scores_TC)
    greedy_T = torch.from_numpy(rows.temperature_T == 0).to(logits_TV.device)
    point_TV = torch.full_like(full_TV, -torch.inf).scatter_(1, logits_TV.argmax(-1, keepdim=True), 0.0)
    return torch.where(greedy_T[:, None], point_TV, full_TV.log_softmax(-1))


def _column(values: npt.NDArray[Any], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device)[:, None]


def _scaled(logits_TV: Tensor, rows: SamplingRows) -> Tensor:
    if (rows.temperature_T == 1).all():
        return logits_TV
    inverse_T = 1.0 / np.where(rows.temperature_T > 0, rows.temperature_T, np.float32(1))
    return logits_TV * _column(inverse_T.astype(np.float32), logits_TV)


def _noise(scores: Tensor, ids: Tensor | None, rows: SamplingRows) -> Tensor:
    keys_T2 = torch.from_numpy(rows.keys_T2).to(scores.device)
    if ids is None:
        ids = torch.arange(scores.shape[1], device=scores.device, dtype=torch.int32)
    noise = gumbel(keys_T2, ids)
    cold = rows.temperature_T == 0
    if cold.any():
        noise.masked_fill_(_column(cold, scores), 0.0)
    return noise


def _candidates(scaled_TV: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor]:
    """Ids and scaled logits `[T, C]`, best first; what the filters remove has `-inf`. Rank 0 always survives."""
    vocabulary = scaled_TV.shape[1]
    # Greedy rows take rank 0 whatever the filters say, so they may count as top-1 here.
    limit_T = np.where(rows.temperature_T == 0, 1, np.where(rows.top_k_T > 0, rows.top_k_T, vocabulary))
    widest = min(int(limit_T.max()), vocabulary)
    if widest <= _FEW:
        values_TC, ids_TC = scaled_TV.topk(widest, dim=-1)
    else:
        values_TC, ids_TC = scaled_TV.sort(dim=-1, descending=True, stable=True)
    rank_C = torch.arange(values_TC.shape[1], device=scaled_TV.device)
    removed_TC = rank_C >= _column(limit_T, scaled_TV)
    values_TC = values_TC.masked_fill(removed_TC, -torch.inf)
    if (rows.top_p_T < 1).any():
        p_TC = values_TC.softmax(-1)
        before_TC = p_TC.cumsum(-1) - p_TC  # mass of everything better: keep the id that crosses top_p
        top_p_T1 = _column(rows.top_p_T, scaled_TV)
        values_TC = values_TC.masked_fill((before_TC >= top_p_T1) & (top_p_T1 < 1) & (rank_C > 0), -torch.inf)
    if (rows.min_p_T > 0).any():
        floor_T1 = values_TC[:, :1] + _column(np.log(np.maximum(rows.min_p_T, 1e-38)), scaled_TV)
        values_TC = values_TC.masked_fill((values_TC < floor_T1) & (rank_C > 0), -torch.inf)
    return ids_TC, values_TC
