"""Samples tokens from logits: temperature, then top-k, top-p and min-p, then the Gumbel noise of the position.

The token is `argmax(log p + g)`, which is a sample from `p`; temperature 0 is the plain argmax.
Filters are per row; a filter that is off for every row costs nothing. No vocabulary is sorted unless what the filters
keep is wider than `NUM_RANKED` ids. A row's token does not depend on the other rows.

Shapes: T rows of logits, V vocabulary, C candidates left by the filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.compiled import explain_no_numba
from decoding.gpu_sampler import runs_kernels, sample_on_gpu
from decoding.noise import gumbel_noise
from decoding.sampling_batch import SamplingBatch

NUM_NARROW = 64
"""Ids of a row that are ranked where its top-k is at most this."""
NUM_RANKED = 1024
"""Ids of another row that are ranked before its whole vocabulary is: of 152,000 ids a twentieth of the time."""

_LONG_ROW = 1 << 14
"""Half of what PyTorch gives a thread at least."""


def reduce_rows(reduce: Callable[[Tensor], Tensor], values_TV: Tensor) -> Tensor:
    """Returns what `reduce` makes of each row; a row has the same bits alone and among others."""
    if values_TV.is_cpu and len(values_TV) == 1 and values_TV.shape[1] >= _LONG_ROW:
        # PyTorch divides the sum over a single long row among its threads, and of several rows each has one thread
        return reduce(values_TV.repeat(2, 1))[:1]
    return reduce(values_TV)


def row_logsumexp(values_TV: Tensor) -> Tensor:
    """Returns log(sum(exp(values))) of each row, `[T, 1]`; see `reduce_rows`."""
    return reduce_rows(lambda values: values.logsumexp(-1, keepdim=True), values_TV)


def sample_tokens(logits_TV: Tensor, rows: SamplingBatch) -> Tensor:
    """Returns the sampled tokens, int64 `[T]`."""
    if runs_kernels(logits_TV.device):
        return sample_on_gpu(logits_TV, rows)[0]
    logits_TV = logits_TV.float()
    if rows.is_greedy:
        return logits_TV.argmax(-1)
    tokens_T = torch.empty(len(logits_TV), dtype=torch.int64, device=logits_TV.device)
    if len(rows.unfiltered_rows):
        _draw_unfiltered(logits_TV, rows, rows.unfiltered_rows, tokens_T)
    draw_filtered(logits_TV, rows, tokens_T)
    return tokens_T


def draw_filtered(logits_TV: Tensor, rows: SamplingBatch, tokens_T: Tensor) -> None:
    """Writes the tokens of rows with a filter to `tokens_T`; logits in float32."""
    if len(rows.unfiltered_rows) == logits_TV.shape[0]:  # `len` of a tensor takes ten times as long
        return
    for rows_R, ids_RC, scores_RC in _filter_candidates(logits_TV, rows):
        noise_RC = gumbel_noise(_to_device(rows.keys_T2[rows_R], scores_RC), ids_RC)
        best_R1 = (scores_RC + noise_RC).argmax(-1, keepdim=True)
        tokens_T[_to_device(rows_R, tokens_T)] = ids_RC.gather(1, best_R1)[:, 0]


def processed_log_probs(logits_TV: Tensor, rows: SamplingBatch) -> Tensor:
    """Returns the distribution that each row is sampled from, as log-probabilities, float32 `[T, V]`.

    Filtered ids have `-inf`. A row with temperature 0 has probability 1 at its argmax.
    """
    logits_TV = logits_TV.float()
    full_TV = _scale_logits(logits_TV, rows).log_softmax(-1)
    if not rows.is_sampled.all():
        greedy_R = _to_device(np.flatnonzero(~rows.is_sampled), full_TV)
        full_TV[greedy_R] = -torch.inf
        full_TV[greedy_R, logits_TV[greedy_R].argmax(-1)] = 0.0
    for rows_R, ids_RC, scores_RC in _filter_candidates(logits_TV, rows):
        log_p_RV = torch.full((len(rows_R), logits_TV.shape[1]), -torch.inf, device=full_TV.device)
        full_TV[_to_device(rows_R, full_TV)] = log_p_RV.scatter_(1, ids_RC, scores_RC.log_softmax(-1))
    return full_TV


def _draw_unfiltered(logits_TV: Tensor, rows: SamplingBatch, rows_R: npt.NDArray[np.int64], tokens_T: Tensor) -> None:
    """Writes the tokens of rows without a filter to `tokens_T`."""
    if logits_TV.is_cpu and explain_no_numba() is None:
        # here: it needs Numba
        from decoding.sampler_kernels import draw_tokens

        keys_T2 = rows.keys_T2.view(np.uint32)
        draw_tokens(logits_TV.numpy(), rows.inverse_temperature, keys_T2, rows_R, tokens_T.numpy())
        return
    logits_TV, rows = _select_rows(logits_TV, rows_R), rows.select_rows(rows_R)
    ids = torch.arange(logits_TV.shape[1], device=logits_TV.device, dtype=torch.int32)
    noise_TV = gumbel_noise(_to_device(rows.keys_T2, logits_TV), ids)
    if not rows.is_sampled.all():
        noise_TV.masked_fill_(_to_device(~rows.is_sampled, logits_TV)[:, None], 0.0)
    best_T = (_scale_logits(logits_TV, rows) + noise_TV).argmax(-1)
    tokens_T[_to_device(rows_R, tokens_T)] = best_T


def _to_device(values: npt.NDArray[np.generic], like: Tensor) -> Tensor:
    here = torch.from_numpy(values)
    # from pinned memory, and so not waited for
    return here.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else here.to(like.device)


def _select_rows(logits_TV: Tensor, rows_R: npt.NDArray[np.int64]) -> Tensor:
    return logits_TV if len(rows_R) == len(logits_TV) else logits_TV[_to_device(rows_R, logits_TV)]


def _scale_logits(logits_TV: Tensor, rows: SamplingBatch) -> Tensor:
    if (rows.temperature_T == 1).all():  # exactly: a product with 1.0 would change nothing but take time
        return logits_TV
    # 1 for greedy rows: the argmax stays
    factor_T = np.where(rows.is_sampled, rows.inverse_temperature, np.float32(1))
    return logits_TV * _to_device(factor_T, logits_TV)[:, None]


def _filter_candidates(
    logits_TV: Tensor, rows: SamplingBatch
) -> Iterator[tuple[npt.NDArray[np.int64], Tensor, Tensor]]:
    """Yields numbers of filtered rows `[R]` with the ids and scaled logits `[R, C]` of their candidates, best first.

    Filtered ones have `-inf`. How many ids of a row are ranked depends on this row alone: of equal logits at the border
    of a filter, another width may keep another one.
    """
    vocab_size = logits_TV.shape[1]
    is_narrow_T = (rows.top_k_T > 0) & (rows.top_k_T <= NUM_NARROW)
    for width, is_member_T in ((NUM_NARROW, is_narrow_T), (NUM_RANKED, ~is_narrow_T)):
        rows_R = np.flatnonzero(rows.is_filtered & is_member_T)
        if not len(rows_R):
            continue
        part, num_ranked = rows.select_rows(rows_R), min(width, vocab_size)
        scaled_RV = _scale_logits(_select_rows(logits_TV, rows_R), part)
        values_RC, ids_RC = scaled_RV.topk(num_ranked, dim=-1)
        kept_RC = _keep_ranks(values_RC, scaled_RV, part)
        values_RC = values_RC.masked_fill(~kept_RC, -torch.inf)
        if ((part.top_k_T > 0) & (part.top_k_T <= num_ranked)).all():  # known here: no wait for the device
            yield rows_R, ids_RC, values_RC
            continue
        # a filter keeps the first ranks: where the last one here is not kept, none of those beyond is
        is_wide_R = (kept_RC[:, -1] & (num_ranked < vocab_size)).cpu().numpy() & (part.top_k_T != num_ranked)
        # top-p is of what top-k leaves, which is more than what is ranked and less than all
        is_wide_R |= (part.top_k_T > num_ranked) & (part.top_k_T < vocab_size) & (part.top_p_T < 1)
        if not is_wide_R.any():
            yield rows_R, ids_RC, values_RC
            continue
        narrow_N, wide_N = np.flatnonzero(~is_wide_R), np.flatnonzero(is_wide_R)
        yield rows_R[narrow_N], _select_rows(ids_RC, narrow_N), _select_rows(values_RC, narrow_N)
        scaled_NV = _select_rows(scaled_RV, wide_N)
        values_NV, ids_NV = scaled_NV.sort(dim=-1, descending=True, stable=True)
        kept_NV = _keep_ranks(values_NV, scaled_NV, part.select_rows(wide_N))
        yield rows_R[wide_N], ids_NV, values_NV.masked_fill(~kept_NV, -torch.inf)


def _keep_ranks(values_TC: Tensor, scaled_TV: Tensor, rows: SamplingBatch) -> Tensor:
    """Returns for the C largest values of each row, best first, which of them the filters keep; rank 0 always."""
    num_ranked, vocab_size = values_TC.shape[1], scaled_TV.shape[1]
    rank_C = torch.arange(num_ranked, device=values_TC.device)
    limit_T = np.where(rows.top_k_T > 0, rows.top_k_T, vocab_size)
    kept_TC = rank_C < _to_device(limit_T, values_TC)[:, None]
    if (rows.top_p_T < 1).any():
        # filters follow each other: top-p renormalises over what top-k has left
        left_TC = values_TC.masked_fill(~kept_TC, -torch.inf)
        total_T1 = row_logsumexp(left_TC)
        if num_ranked < vocab_size and (limit_T > num_ranked).any():
            is_beyond_T1 = _to_device(limit_T > num_ranked, values_TC)[:, None]
            total_T1 = torch.where(is_beyond_T1, row_logsumexp(scaled_TV), total_T1)
        p_TC = (left_TC - total_T1).exp()
        before_TC = p_TC.cumsum(-1) - p_TC  # mass before this id: the id that crosses top_p is kept
        top_p_T1 = _to_device(rows.top_p_T, values_TC)[:, None]
        kept_TC &= (before_TC < top_p_T1) | (top_p_T1 >= 1)
    if (rows.min_p_T > 0).any():
        # p < min_p * p_max, in logarithms
        floor_T1 = values_TC[:, :1] + _to_device(rows.log_min_p, values_TC)[:, None]
        kept_TC &= values_TC >= floor_T1
    kept_TC[:, 0] = True
    return kept_TC
