"""Samples tokens from logits: temperature, then top-k, top-p and min-p, then the Gumbel noise of the position.

The token is `argmax(log p + g)`, which is a sample from `p`; temperature 0 is the plain argmax.
Filters are per row; a filter that is off for every row costs nothing.

Shapes: T rows of logits, V vocabulary, C candidates left by the filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.core import SamplingParams
from decoding.noise import gumbel_noise, noise_keys
from decoding.sampling_columns import SamplingColumns

_MAX_PARTIAL_SORT = 1024  # up to this many candidates a partial sort is cheaper than a full one


@dataclass(frozen=True)
class SamplingBatch:
    """The sampling parameters of T rows as arrays, and their noise keys."""

    temperature_T: npt.NDArray[np.float32]
    top_k_T: npt.NDArray[np.int64]
    top_p_T: npt.NDArray[np.float32]
    min_p_T: npt.NDArray[np.float32]
    keys_T2: npt.NDArray[np.int32]

    @classmethod
    def from_params(
        cls, params: Sequence[SamplingParams], seeds: Sequence[int], positions: Sequence[int] | npt.NDArray[np.int64]
    ) -> SamplingBatch:
        """Collects the parameters of T rows.

        `positions` are those of the tokens to be chosen, not of the tokens before them.
        """
        return cls(*SamplingColumns.from_params(params), noise_keys(seeds, positions))


def sample_tokens(logits_TV: Tensor, rows: SamplingBatch) -> Tensor:
    """Returns the sampled tokens, int64 `[T]`."""
    logits_TV = logits_TV.float()
    is_sampled_T = rows.temperature_T > 0
    if not is_sampled_T.any():
        return logits_TV.argmax(-1)
    scaled_TV = _scale_logits(logits_TV, rows)
    # of sampled rows only: every filter keeps the argmax
    needs_filter = bool(((rows.top_k_T > 0) | (rows.top_p_T < 1) | (rows.min_p_T > 0))[is_sampled_T].any())
    ids, scores = _filter_candidates(scaled_TV, rows) if needs_filter else (None, scaled_TV)
    scores = scores + _make_noise(scores, ids, rows)
    best_T1 = scores.argmax(-1, keepdim=True)
    return (best_T1 if ids is None else ids.gather(1, best_T1))[:, 0]


def processed_log_probs(logits_TV: Tensor, rows: SamplingBatch) -> Tensor:
    """Returns the distribution that each row is sampled from, as log-probabilities, float32 `[T, V]`.

    Filtered ids have `-inf`. A row with temperature 0 has probability 1 at its argmax.
    """
    logits_TV = logits_TV.float()
    ids_TC, scores_TC = _filter_candidates(_scale_logits(logits_TV, rows), rows)
    full_TV = torch.full_like(logits_TV, -torch.inf).scatter_(1, ids_TC, scores_TC)
    greedy_T = torch.from_numpy(rows.temperature_T == 0).to(logits_TV.device)
    point_TV = torch.full_like(full_TV, -torch.inf).scatter_(1, logits_TV.argmax(-1, keepdim=True), 0.0)
    return torch.where(greedy_T[:, None], point_TV, full_TV.log_softmax(-1))


def _as_column(values: npt.NDArray[np.generic], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device)[:, None]


def _scale_logits(logits_TV: Tensor, rows: SamplingBatch) -> Tensor:
    if (rows.temperature_T == 1).all():  # exactly: a product with 1.0 would change nothing but take time
        return logits_TV
    # 1 for greedy rows: no division by 0, and the argmax stays
    inverse_T = 1.0 / np.where(rows.temperature_T > 0, rows.temperature_T, np.float32(1))
    return logits_TV * _as_column(inverse_T.astype(np.float32), logits_TV)


def _make_noise(scores: Tensor, ids: Tensor | None, rows: SamplingBatch) -> Tensor:
    keys_T2 = torch.from_numpy(rows.keys_T2).to(scores.device)
    if ids is None:
        ids = torch.arange(scores.shape[1], device=scores.device, dtype=torch.int32)
    noise = gumbel_noise(keys_T2, ids)
    is_greedy_T = rows.temperature_T == 0
    if is_greedy_T.any():
        noise.masked_fill_(_as_column(is_greedy_T, scores), 0.0)
    return noise


def _filter_candidates(scaled_TV: Tensor, rows: SamplingBatch) -> tuple[Tensor, Tensor]:
    """Returns ids and scaled logits `[T, C]`, best first; filtered ones have `-inf`. Rank 0 is always kept."""
    vocab_size = scaled_TV.shape[1]
    # Greedy rows take rank 0 whatever the filters say, so they may count as top-1 here.
    limit_T = np.where(rows.temperature_T == 0, 1, np.where(rows.top_k_T > 0, rows.top_k_T, vocab_size))
    widest = min(int(limit_T.max()), vocab_size)
    if widest <= _MAX_PARTIAL_SORT:
        values_TC, ids_TC = scaled_TV.topk(widest, dim=-1)
    else:
        values_TC, ids_TC = scaled_TV.sort(dim=-1, descending=True, stable=True)
    rank_C = torch.arange(values_TC.shape[1], device=scaled_TV.device)
    # filters follow each other: top-p renormalises over what top-k has left
    removed_TC = rank_C >= _as_column(limit_T, scaled_TV)
    values_TC = values_TC.masked_fill(removed_TC, -torch.inf)
    if (rows.top_p_T < 1).any():
        p_TC = values_TC.softmax(-1)
        before_TC = p_TC.cumsum(-1) - p_TC  # mass before this id: the id that crosses top_p is kept
        top_p_T1 = _as_column(rows.top_p_T, scaled_TV)
        values_TC = values_TC.masked_fill((before_TC >= top_p_T1) & (top_p_T1 < 1) & (rank_C > 0), -torch.inf)
    if (rows.min_p_T > 0).any():
        # p < min_p * p_max, in logarithms; 1e-38 keeps log finite where the filter is off
        floor_T1 = values_TC[:, :1] + _as_column(np.log(np.maximum(rows.min_p_T, 1e-38)), scaled_TV)
        values_TC = values_TC.masked_fill((values_TC < floor_T1) & (rank_C > 0), -torch.inf)
    return ids_TC, values_TC
