"""Accepts draft tokens that are the target's most likely token (blockwise parallel decoding, arXiv 1811.03115).

The result is greedy decoding at every temperature: equal to every other rule at temperature 0, lossy above.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decoding.speculation.acceptance.given_tokens import match_tokens
from decoding.speculation.draft import RANDOM_SAMPLING, Draft, DraftSampling, VerifyResult
from decoding.speculation.interfaces import Branch

if TYPE_CHECKING:  # imports torch, which a wrong setting need not wait for
    from decoding.speculation.target_logits import TargetLogits


@dataclass(frozen=True)
class GreedyMatch:
    """Implements `AcceptanceRule`. Lossy: it ignores the temperature of a request."""

    lossless: ClassVar[bool] = False
    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = ("likely", *RANDOM_SAMPLING, "coupled")

    def verify_drafts(self, branches: Items[Branch], drafts: Items[Draft], target: TargetLogits) -> list[VerifyResult]:
        # In float32, as the sampler at temperature 0, so that ties have the same winner.
        best_W = target.logits_WV.float().argmax(-1)
        tokens, logprobs = target.read_numbers(best_W, target.select_logprobs(best_W))
        return match_tokens(drafts, target.first_rows, tokens.tolist(), logprobs.tolist())
