"""Models, drafters and rules that run out of memory at chosen calls, as a full device does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decoding.model.backend import TokenBatch
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.draft import Draft, VerifyResult
from decoding.speculation.interfaces import Branch, Drafter, DraftPlan, Feedback
from decoding.speculation.target_logits import TargetLogits
from tests.support.fakes import HashBackend

HasMemory = Callable[[int, int], bool]
"""Whether there is memory for call number n (from 1) of a size."""


def refuse() -> None:
    """Raises what PyTorch raises."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


class ScarceBackend(HashBackend):
    """A toy model with memory for some forward passes, by their tokens, and for some heads, by their rows.

    A pass that fails has written its K and V before: they must not be read. `sizes` are the tokens of all that were
    tried.
    """

    def __init__(self, has_memory: HasMemory, *, in_head: HasMemory = lambda call, size: True) -> None:
        super().__init__()
        self._has_memory, self._has_memory_in_head = has_memory, in_head
        self.sizes: list[int] = []
        self.heads = 0

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        hidden = super().forward(batch, pool)
        self.sizes.append(len(batch.tokens_T))
        if not self._has_memory(len(self.sizes), len(batch.tokens_T)):
            pool[batch.slots_T] = -1
            refuse()
        return hidden

    def apply_head(self, hidden: Tensor) -> Tensor:
        self.heads += 1
        if not self._has_memory_in_head(self.heads, len(hidden)):
            refuse()
        return super().apply_head(hidden)


@dataclass
class ScarceDrafter:
    """A drafter that has no memory for some proposals; `observed` are the outcomes that it was given."""

    drafter: Drafter
    has_memory: HasMemory
    proposals: int = 0
    observed: list[Feedback] = field(default_factory=list)

    @property
    def feedback_k(self) -> int:
        return self.drafter.feedback_k

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        self.proposals += 1
        if not self.has_memory(self.proposals, len(branches)):
            refuse()
        return self.drafter.propose(branches, plan)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.observed += feedback
        self.drafter.observe(feedback)


@dataclass(frozen=True)
class ScarceRule(Coupled):
    """Coupled acceptance after which there is no memory at some calls: the sampler needs some too."""

    has_memory: HasMemory = lambda call, size: True
    calls: list[int] = field(default_factory=list)

    def verify_drafts(
        self, branches: Sequence[Branch], drafts: Sequence[Draft], target: TargetLogits
    ) -> list[VerifyResult]:
        results = super().verify_drafts(branches, drafts, target)
        self.calls.append(len(branches))
        if not self.has_memory(len(self.calls), len(branches)):
            refuse()
        return results
