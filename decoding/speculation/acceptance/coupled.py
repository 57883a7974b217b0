"""Coupled acceptance: accepts the draft tokens that the target samples itself with the noise of their position.

The target's token after a row is a function of its logits, the request's seed and the position. So the output equals
plain decoding token for token, for every draft tree and every drafter.
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
class Coupled:
    """Implements `AcceptanceRule` (DESIGN D2)."""

    lossless: ClassVar[bool] = True
    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = ("coupled", "likely", *RANDOM_SAMPLING)

    def verify_drafts(self, branches: Items[Branch], drafts: Items[Draft], target: TargetLogits) -> list[VerifyResult]:
        return match_tokens(drafts, target.first_rows, target.tokens.tolist(), target.logprobs.tolist())
