"""Coupled acceptance: accepts the draft tokens that the target samples itself with the noise of their position.

The target's token after a row is a function of its logits, the request's seed and the position. So the output equals
plain decoding token for token, for every draft tree and every drafter.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

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
        tokens, logprobs = target.tokens.tolist(), target.logprobs.tolist()
        results = []
        # Lists, read once: indexing arrays on every step of a path costs more than the comparison.
        for first, draft in zip(target.first_rows, drafts, strict=True):
            if not draft.tokens:  # plain decoding, most rows of a large batch
                results.append(VerifyResult((), (tokens[first],), (logprobs[first],)))
                continue
            after = tokens[first : first + 1 + len(draft)]  # row 0 is the root, node -1
            path, _ = draft.follow_path(partial(_token_after, after))
            rows = [first, *(first + 1 + node for node in path)]
            results.append(VerifyResult(path, tuple(tokens[r] for r in rows), tuple(logprobs[r] for r in rows)))
        return results


def _token_after(tokens: Items[int], node: int) -> int:
    return tokens[node + 1]
