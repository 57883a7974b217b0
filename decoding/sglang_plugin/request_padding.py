"""Chooses which requests of a round with drafts get padding instead: those whose draft is expected to win too little.

SGLang pads all trees of a batch to one size, so the model does not get faster by it. The host does: the drafter learns
from every row of a draft, and from one row of a request without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_LEAST_TOKENS = 0.05  # about what a busy server commits while the drafter learns from a draft of 11 nodes
_MOST_PADDED = 16  # rounds in a row without a draft of a request: its estimate must get a chance to be wrong


@dataclass
class RequestPadding:
    """Remembers for how many rounds each running request has had no draft."""

    _padded: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def choose_drafts(self, request_ids: Sequence[int], expected_tokens: Sequence[float]) -> list[bool]:
        """Returns for each request whether its draft is verified, given the tokens expected of it. *Mutates*.

        If no draft is worth it, all are: the round is one of a trial, which the server pays for anyway.
        """
        is_worth = [tokens >= _LEAST_TOKENS for tokens in expected_tokens]
        if not any(is_worth):
            self._padded = {}
            return [True] * len(is_worth)
        before = [self._padded.get(request, 0) for request in request_ids]
        drafts = [worth or rounds >= _MOST_PADDED for worth, rounds in zip(is_worth, before, strict=True)]
        padded = zip(request_ids, before, drafts, strict=True)
        self._padded = {request: rounds + 1 for request, rounds, has_draft in padded if not has_draft}
        return drafts
