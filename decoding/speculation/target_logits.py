"""What the target said about the wanted rows of a round, and what an acceptance rule makes of it.

Shapes: W wanted rows, V vocabulary, k feedback width.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.core import Tokens
from decoding.model.backend import Ints
from decoding.model.transfer import to_host
from decoding.noise import gumbel
from decoding.sampler import SamplingRows, processed_log_probs, sample
from decoding.speculation.interfaces import Branch, Draft, DrawKind

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Target:
    """The target's output after every wanted row. Branch i owns rows `[first[i], first[i] + 1 + len(draft))`:
    its last committed token, then its draft nodes. `hidden_Wh` is what the logits were made from. What nobody asks for
    is not computed; what coupled acceptance and a drafter ask for leaves the device in one copy."""

    logits_WV: Tensor
    sampling: SamplingRows
    first: tuple[int, ...]
    hidden_Wh: Any = None
    feedback_k: int = 0

    @cached_property
    def _choice(self) -> Tensor:
        return sample(self.logits_WV, self.sampling)

    @cached_property
    def _normaliser(self) -> Tensor:
        return self.logits_WV.float().logsumexp(-1, keepdim=True)

    @cached_property
    def _likeliest(self) -> tuple[Tensor, Tensor]:
        logits_Wk, ids_Wk = self.logits_WV.topk(min(self.feedback_k, self.logits_WV.shape[1]), dim=-1)
        return ids_Wk, logits_Wk.float() - self._normaliser

    @cached_property
    def _said(self) -> Items[npt.NDArray[Any]]:
        picked_W1 = self.logits_WV.gather(1, self._choice[:, None]).float() - self._normaliser
        return to_host(self._choice, picked_W1[:, 0], *(self._likeliest if self.feedback_k else ()))

    @property
    def tokens(self) -> Ints:
        """The target's own token after each row `[W]`, drawn with that position's noise."""
        return self._said[0]

    @property
    def logprobs(self) -> Floats:
        """Raw log-probability of `tokens`."""
        return self._said[1]

    @cached_property
    def feedback(self) -> tuple[Ints, Floats]:
        """The likeliest ids and their raw log-probabilities, both `[W, feedback_k]`, best first."""
        ids, logprobs = self._said[2:] if "_said" in self.__dict__ else to_host(*self._likeliest)
        return ids, logprobs

    @cached_property
    def log_p(self) -> Tensor:
        """`[W, V]`, the distribution each row is sampled from, after temperature and filters."""
        return processed_log_probs(self.logits_WV, self.sampling)

    @cached_property
    def raw_log_p(self) -> Tensor:
        """`[W, V]`, the model's own distribution, temperature 1 and unfiltered."""
        return self.logits_WV.float() - self._normaliser

    def noise(self, ids: Tensor) -> Tensor:
        """The rows' Gumbel noise for ids `[V]` or `[W, V]`."""
        return gumbel(torch.from_numpy(self.sampling.keys_T2).to(ids.device), ids)


@dataclass(frozen=True)
class Accepted:
    """One branch's outcome: the draft nodes kept, in path order, and all tokens to commit, the last one not drafted."""

    path: tuple[int, ...]
    tokens: Tokens
    logprobs: tuple[float, ...] = field(repr=False)

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.path) + 1 == len(self.logprobs)


class Acceptance(Protocol):
    """Decides how much of each draft is kept. Pure: the same inputs give the same outcome."""

    @property
    def lossless(self) -> bool:
        """Whether the output is distributed as (or equal to) plain decoding's."""
        ...

    @property
    def draws(self) -> tuple[DrawKind, ...]:
        """The ways of drawing a draft it is right for; the first is the one to use with it."""
        ...

    def accept(self, branches: Items[Branch], drafts: Items[Draft], target: Target) -> list[Accepted]:
        """One outcome per branch; the tokens of `path` are the draft's."""
        ...
