"""Samples tokens on a GPU with Triton: two passes over the logits as the head wrote them, and nothing to wait for.

The logits are read in their own type, in float32 in registers. No noise, no copy and no ranking of a vocabulary is
written. A row's token does not depend on the other rows: parts of a vocabulary have one size, whatever the batch.

Shapes: T rows, V vocabulary, P parts of a row, C candidates.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.device_arrays import copy_arrays
from decoding.sampling_batch import SamplingBatch
from decoding.triton_operators import define_operator, has_triton, round_to_power

NUM_CANDIDATES = 8
"""Of a real model's distribution one of 8 is kept in all but about one row of a million, with top-p 0.8."""
_SPAN, _BLOCK = 8192, 1024
_MAX_TOP = 1024
"""Largest top-k whose mass is read from a partial ranking."""


def runs_kernels(device: torch.device) -> bool:
    """Returns whether tokens are sampled by these kernels: on CUDA, where PyTorch was built for it and Triton is there.

    Elsewhere `decoding.sampler` computes the same tokens with PyTorch's own operations. On the meta device nothing is
    computed: a trace there sees what a GPU would run.
    """
    if device.type == "meta":
        return True
    return device.type == "cuda" and torch.version.cuda is not None and has_triton()


def sample_on_gpu(logits_TV: Tensor, rows: SamplingBatch) -> tuple[Tensor, Tensor]:
    """Returns the sampled tokens, int64 `[T]`, and the logarithm of each row's sum of exp(logits), float32 `[T]`."""
    (params,) = copy_arrays([pack_params(rows)], logits_TV.device)
    num_top = _count_ranked(rows, logits_TV.shape[1])
    tokens, logsumexp = torch.ops.decoding.sample_tokens(logits_TV, params, bool(rows.is_filtered.any()), num_top)
    return tokens, logsumexp


def pack_params(rows: SamplingBatch) -> npt.NDArray[np.int32]:
    """Returns the parameters of each row as words, int32 `[T, 6]`, in the order that the kernels read."""
    # a top-k beyond 32 bits filters nothing
    top_k_T = np.minimum(rows.top_k_T, 2**31 - 1).astype(np.int32)
    columns = (
        rows.inverse_temperature.view(np.int32),
        top_k_T,
        rows.top_p_T.view(np.int32),
        rows.log_min_p.view(np.int32),
    )
    return np.column_stack([*columns, rows.keys_T2])


def _count_ranked(rows: SamplingBatch, vocab_size: int) -> int:
    """Returns how many of a row's largest logits top-p needs where it follows top-k; 0 where it never does."""
    both_T = rows.is_filtered & (rows.top_k_T > 0) & (rows.top_p_T < 1)
    return min(int(rows.top_k_T[both_T].max()), vocab_size, _MAX_TOP) if both_T.any() else 0


def _run_kernels(logits_TV: Tensor, params_T6: Tensor, is_filtered: bool, num_top: int) -> tuple[Tensor, Tensor]:
    # here: only this function needs Triton
    from decoding.gpu_sampler_kernels import choose_candidates, collect_candidates, rank_candidates, search_tokens

    num_rows, vocab_size = logits_TV.shape
    parts = round_to_power(-(-vocab_size // _SPAN))
    device, shape = logits_TV.device, (num_rows, parts, NUM_CANDIDATES)
    scores = torch.empty(shape, device=device)
    ids = torch.empty(shape, dtype=torch.int32, device=device)
    sums = torch.empty((num_rows, parts, 4), device=device)
    tokens, logsumexp = torch.empty(num_rows, dtype=torch.int64, device=device), torch.empty(num_rows, device=device)
    masses, counts = torch.empty_like(scores), torch.empty_like(ids)
    top = logits_TV.topk(num_top, dim=-1).values if num_top else logits_TV
    stride, constants = logits_TV.stride(0), {"PARTS": parts, "C": NUM_CANDIDATES}
    split = {"SPAN": _SPAN, "BLOCK": _BLOCK, **constants}
    # all parts, those beyond the vocabulary too: they write the sums of nothing
    collect_candidates[(num_rows, parts)](logits_TV, params_T6, scores, ids, sums, vocab_size, stride, **split)
    if is_filtered:
        rank_candidates[(num_rows, parts)](
            logits_TV, params_T6, scores, ids, sums, masses, counts, vocab_size, stride, **split
        )
    choose_candidates[(num_rows,)](
        logits_TV, params_T6, scores, ids, sums, masses, counts, top, tokens, logsumexp,
        vocab_size, stride, num_top, K=round_to_power(max(num_top, 1)), **constants,
    )  # fmt: skip
    if is_filtered:
        search_tokens[(num_rows,)](logits_TV, params_T6, sums, tokens, vocab_size, stride, BLOCK=_BLOCK, PARTS=parts)
    return tokens, logsumexp


def _describe_result(logits_TV: Tensor, params_T6: Tensor, is_filtered: bool, num_top: int) -> tuple[Tensor, Tensor]:
    num_rows = len(logits_TV)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits_TV.device)
    return tokens, torch.empty(num_rows, device=logits_TV.device)


define_operator(
    "sample_tokens(Tensor logits, Tensor params, bool is_filtered, int num_top) -> (Tensor, Tensor)",
    _run_kernels,
    _describe_result,
)
