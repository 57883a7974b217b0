"""The target model's output of one round, as acceptance rules and drafters read it.

Shapes: W logits rows, V vocabulary, D hidden size, k feedback width, R of the rows, K log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.fork import LazyProperty
from decoding.gpu_sampler import runs_kernels, sample_on_gpu
from decoding.sampler import processed_log_probs, reduce_rows, row_logsumexp, sample_tokens
from decoding.sampling_batch import SamplingBatch

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TargetLogits:
    """The logits of a round's output rows, and values computed from them on demand.

    Branch i has rows `[first_rows[i], first_rows[i] + 1 + len(draft))`: its last committed token, then its draft nodes.
    `hidden_WD` is the last hidden state of the same rows. Only the properties that are read are computed; those that
    coupled acceptance and a drafter read are copied from the device together.
    """

    logits_WV: Tensor
    sampling: SamplingBatch
    first_rows: tuple[int, ...]
    hidden_WD: Tensor | None = None
    feedback_k: int = 0

    @LazyProperty
    def _sampled(self) -> Tensor:
        if not runs_kernels(self.logits_WV.device):
            return sample_tokens(self.logits_WV, self.sampling)
        tokens, logsumexp = sample_on_gpu(self.logits_WV, self.sampling)
        # the same pass has measured both; where `LazyProperty` stores its value
        self.__dict__["_logsumexp"] = logsumexp[:, None]
        return tokens

    @LazyProperty
    def _logsumexp(self) -> Tensor:
        # In float32: bfloat16 sums of a large vocabulary lose the small terms.
        return row_logsumexp(self.logits_WV.float())

    @LazyProperty
    def _top(self) -> tuple[Tensor, Tensor]:
        # topk of the raw logits: their order is that of the log-probabilities, and W x V values need no conversion.
        logits_Wk, ids_Wk = self.logits_WV.topk(min(self.feedback_k, self.logits_WV.shape[1]), dim=-1)
        return ids_Wk, logits_Wk.float() - self._logsumexp

    @LazyProperty
    def _sampled_on_host(self) -> tuple[Ints, Floats]:
        """Tokens and log-probabilities. The copy also fills `top_logprobs`, so a round waits for the device once."""
        sampled = self._sampled  # first: it may measure `_logsumexp` too
        logprobs_W1 = self.logits_WV.gather(1, sampled[:, None]).float() - self._logsumexp
        tokens, logprobs, *top = copy_to_host(sampled, logprobs_W1[:, 0], *(self._top if self.feedback_k else ()))
        if top:
            # Where `LazyProperty` stores its value; assignment is blocked by the frozen dataclass.
            self.__dict__["top_logprobs"] = (top[0], top[1])
        return tokens, logprobs

    @property
    def tokens(self) -> Ints:
        """The target's own token after each row `[W]`, sampled with the noise of that position."""
        return self._sampled_on_host[0]

    @property
    def logprobs(self) -> Floats:
        """Raw log-probability of `tokens`."""
        return self._sampled_on_host[1]

    @LazyProperty
    def top_logprobs(self) -> tuple[Ints, Floats]:
        """The most likely ids and their raw log-probabilities, both `[W, feedback_k]`, best first."""
        ids, logprobs = copy_to_host(*self._top)
        return ids, logprobs

    @LazyProperty
    def log_p(self) -> Tensor:
        """`[W, V]`, the distribution that each row is sampled from, after temperature and filters."""
        return processed_log_probs(self.logits_WV, self.sampling)

    @LazyProperty
    def raw_log_p(self) -> Tensor:
        """`[W, V]`, the model's distribution at temperature 1, unfiltered."""
        return self.logits_WV.float() - self._logsumexp

    def measure_rows(self, rows: Sequence[int], num_top: int) -> tuple[Ints, Floats, Floats]:
        """Returns the `num_top` most likely ids of rows and their raw log-probabilities, best first, and the entropies.

        Both `[R, K]`, and `[R]` in nats. Where the vocabulary is smaller, the rest of a row is -1 and NaN.
        """
        log_p_RV = self.logits_WV[torch.tensor(rows, device=self.logits_WV.device)].float().log_softmax(-1)
        top_RK, ids_RK = log_p_RV.topk(min(num_top, log_p_RV.shape[1]), dim=-1)
        missing = (0, num_top - top_RK.shape[1])
        top_RK = torch.nn.functional.pad(top_RK, missing, value=torch.nan)
        ids_RK = torch.nn.functional.pad(ids_RK, missing, value=-1)
        ids, top, entropies = copy_to_host(ids_RK, top_RK, reduce_rows(_measure_entropies, log_p_RV))
        return ids, top, entropies


def _measure_entropies(log_p_RV: Tensor) -> Tensor:
    entropies_R: Tensor = torch.special.entr(log_p_RV.exp()).sum(-1)
    return entropies_R


def copy_to_host(*tensors: Tensor) -> list[npt.NDArray[Any]]:
    """Copies tensors `[W]` or `[W, n]` of one device, ids or float32, to arrays of int64 and float32.

    One copy for all: each copy from the device waits for it. Ids must fit 32 bits.
    """
    if tensors[0].is_cpu:  # shares memory with the tensors; no result is written to
        return [tensor.numpy() for tensor in tensors]
    # float32 as its bits: a conversion to a common number type would lose digits of ids or of numbers.
    columns = [tensor.reshape(len(tensor), -1) for tensor in tensors]
    words = torch.cat([c.view(torch.int32) if c.is_floating_point() else c.int() for c in columns], dim=1).cpu().numpy()
    parts = np.split(words, np.cumsum([column.shape[1] for column in columns])[:-1], axis=1)
    # A view needs contiguous memory, and the columns of a split are not.
    return [
        (np.ascontiguousarray(part).view(np.float32) if tensor.is_floating_point() else part.astype(np.int64)).reshape(
            tuple(tensor.shape)
        )
        for part, tensor in zip(parts, tensors, strict=True)
    ]
