"""The target model's output of one round, as acceptance rules and drafters read it.

Shapes: W logits rows, V vocabulary, D hidden size, k feedback width, R of the rows, K log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.compiled import explain_no_numba
from decoding.fork import LazyProperty
from decoding.gpu_sampler import runs_kernels, sample_on_gpu
from decoding.sampler import draw_filtered, processed_log_probs, reduce_rows, row_logsumexp, sample_tokens
from decoding.sampling_batch import SamplingBatch
from decoding.threads import choose_threads

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_THREAD_LOGITS = 1 << 19
"""Logits that are worth a thread: half a millisecond, ten times what waking it takes."""


@dataclass(frozen=True)
class TargetLogits:
    """The logits of a round's output rows, and values computed from them on demand.

    Branch i has rows `[first_rows[i], first_rows[i] + 1 + len(draft))`: its last committed token, then its draft nodes.
    `hidden_WD` is the last hidden state of the same rows. Only the properties that are read are computed. A drafter's
    are copied from the device with the first numbers that the acceptance rule reads.
    """

    logits_WV: Tensor
    sampling: SamplingBatch
    first_rows: tuple[int, ...]
    hidden_WD: Tensor | None = None
    feedback_k: int = 0

    @LazyProperty
    def sampled(self) -> Tensor:
        """`tokens`, on the device."""
        if not runs_kernels(self.logits_WV.device):
            return sample_tokens(self.logits_WV, self.sampling)
        tokens, logsumexp = sample_on_gpu(self.logits_WV, self.sampling)
        # the same pass has measured both; where `LazyProperty` stores its value
        self.__dict__["_logsumexp"] = logsumexp[:, None]
        return tokens

    @LazyProperty
    def _floats(self) -> Tensor:
        """`logits_WV` in float32: sums of a large vocabulary in bfloat16 lose the small terms."""
        return self.logits_WV.float()

    @property
    def _runs_loops(self) -> bool:
        """Whether compiled loops read the logits."""
        return self.logits_WV.is_cpu and explain_no_numba() is None

    @LazyProperty
    def _logsumexp(self) -> Tensor:
        if not self._runs_loops:
            return row_logsumexp(self._floats)
        # here: it needs Numba
        from decoding.logsumexp import sum_exponentials

        logsumexp_W1 = np.empty((len(self.logits_WV), 1), dtype=np.float32)
        sum_exponentials(self._floats.contiguous().numpy(), logsumexp_W1)
        return torch.from_numpy(logsumexp_W1)

    @LazyProperty
    def _top(self) -> tuple[Tensor, Tensor]:
        # of the raw logits: their order is that of the log-probabilities, and W x V values need no conversion
        logits_Wk, ids_Wk = self.logits_WV.topk(min(self.feedback_k, self.logits_WV.shape[1]), dim=-1)
        return ids_Wk, logits_Wk.float() - self._logsumexp

    @LazyProperty
    def _sampled_on_host(self) -> tuple[Ints, Floats]:
        """Tokens and log-probabilities."""
        if self._runs_loops:
            return self._draw_and_measure()
        sampled = self.sampled  # first: it may measure `_logsumexp` too
        if self.logits_WV.is_cpu:
            # as `select_logprobs`, without the calls of four operations
            tokens = sampled.numpy()
            return tokens, self._floats.numpy()[np.arange(len(tokens)), tokens] - self._logsumexp.numpy()[:, 0]
        tokens, logprobs = self.read_numbers(sampled, self.select_logprobs(sampled))
        return tokens, logprobs

    def _draw_and_measure(self) -> tuple[Ints, Floats]:
        """Returns what `_sampled_on_host` holds, and keeps what the same pass has measured."""
        rows, (count, vocab_size) = self.sampling, self.logits_WV.shape
        tokens, logprobs = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.float32)
        logsumexp_W1, width = np.empty((count, 1), dtype=np.float32), min(self.feedback_k, vocab_size)
        ids_Wk, top_Wk = np.empty((count, width), dtype=np.int64), np.empty((count, width), dtype=np.float32)
        draw_filtered(self._floats, rows, torch.from_numpy(tokens))
        run_in_team, draw_and_measure = _load_sampling_pass()
        run_in_team(
            choose_threads(min(count, count * vocab_size // _THREAD_LOGITS)), draw_and_measure,
            self._floats.contiguous().numpy(), rows.inverse_temperature, rows.keys_T2.view(np.uint32), rows.is_filtered,
            tokens, logsumexp_W1, logprobs, ids_Wk, top_Wk,
        )  # fmt: skip
        # where `LazyProperty` stores its value
        self.__dict__["_logsumexp"] = torch.from_numpy(logsumexp_W1)
        if width:
            self.__dict__["top_logprobs"] = ids_Wk, top_Wk
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
        if self._runs_loops:
            # here: it needs Numba
            from decoding.top_logits import find_largest

            shape = self.logits_WV.shape[0], min(self.feedback_k, self.logits_WV.shape[1])
            ids, largest = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
            find_largest(self._floats.contiguous().numpy(), ids, largest)
            return ids, largest - self._logsumexp.numpy()
        ids, logprobs = copy_to_host(*self._top)
        return ids, logprobs

    def select_logprobs(self, tokens_N: Tensor, rows_N: Tensor | None = None) -> Tensor:
        """Returns the raw log-probabilities of tokens after rows, or of one token after each row, on the device."""
        if rows_N is None:
            return (self.logits_WV.gather(1, tokens_N[:, None]).float() - self._logsumexp)[:, 0]
        return self.logits_WV[rows_N, tokens_N].float() - self._logsumexp[rows_N, 0]

    def read_numbers(self, *tensors: Tensor) -> list[npt.NDArray[Any]]:
        """Copies tensors to the host as `copy_to_host` does, and with the first of them `top_logprobs`, so that a rule
        which reads once makes the round wait for the device once."""
        # on a CPU there is nothing to wait for
        reads_top = self.feedback_k > 0 and not self.logits_WV.is_cpu and "top_logprobs" not in self.__dict__
        numbers = copy_to_host(*tensors, *(self._top if reads_top else ()))
        if reads_top:
            # Where `LazyProperty` stores its value; assignment is blocked by the frozen dataclass.
            *numbers, ids, logprobs = numbers
            self.__dict__["top_logprobs"] = ids, logprobs
        return numbers

    @LazyProperty
    def log_p(self) -> Tensor:
        """`[W, V]`, the distribution that each row is sampled from, after temperature and filters."""
        return processed_log_probs(self.logits_WV, self.sampling)

    @LazyProperty
    def raw_log_p(self) -> Tensor:
        """`[W, V]`, the model's distribution at temperature 1, unfiltered."""
        return self._floats - self._logsumexp

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


@cache
def _load_sampling_pass() -> tuple[Callable[..., None], Callable[..., None]]:
    # here: they need Numba. Kept, because even an import of what is there takes a hundredth of a small round
    from decoding.sampling_pass import draw_and_measure
    from decoding.thread_team import run_in_team

    return run_in_team, draw_and_measure


def _measure_entropies(log_p_RV: Tensor) -> Tensor:
    entropies_R: Tensor = torch.special.entr(log_p_RV.exp()).sum(-1)
    return entropies_R


def copy_to_host(*tensors: Tensor) -> list[npt.NDArray[Any]]:
    """Copies tensors of one device to arrays: ids to int64, flags to bool, and numbers in their precision.

    One copy for all: each copy from the device waits for it. Ids must fit 32 bits.
    """
    if tensors[0].is_cpu:  # shares memory with the tensors; no result is written to
        return [tensor.numpy() for tensor in tensors]
    # numbers as their bits: a conversion to a common type would lose digits of ids or of numbers
    words = [
        (tensor.contiguous().view(torch.int32) if tensor.is_floating_point() else tensor.int()).reshape(-1)
        for tensor in tensors
    ]
    parts = np.split(torch.cat(words).cpu().numpy(), np.cumsum([len(part) for part in words])[:-1])
    return [_restore(part, tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _restore(words: npt.NDArray[np.int32], tensor: Tensor) -> npt.NDArray[Any]:
    if not tensor.is_floating_point():
        return words.astype(np.bool_ if tensor.dtype == torch.bool else np.int64).reshape(tuple(tensor.shape))
    # a copy: eight bytes may begin between two multiples of eight
    return words.copy().view(np.float64 if tensor.dtype == torch.float64 else np.float32).reshape(tuple(tensor.shape))
