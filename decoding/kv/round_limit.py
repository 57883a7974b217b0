"""Bounds rounds on a device that had no memory for a larger one.

A round that did not fit is undone and runs again, smaller: first without half of its draft tokens, as often as it has
any, then with half of its tokens. Later rounds keep the bound. It rises by an eighth whenever 256 rounds have fitted,
so that a memory that was short for a while is used again, and one that is short for good costs a failure in 256 rounds.
"""

from __future__ import annotations

import logging

from decoding.kv.out_of_memory import OutOfMemory
from decoding.validation import MAX_VALUE

log = logging.getLogger(__name__)

ROUNDS_TO_RISE = 256


class RoundLimit:
    """The tokens that a round may have, those of drafts included; no bound until a round has failed.

    advice  the settings that leave more memory for rounds, as the end of a sentence
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._fitted = 0  # rounds since the bound was set or rose
        self.tokens = MAX_VALUE
        self.num_failures = 0

    def shrink(self, num_tokens: int, num_drafted: int, error: BaseException) -> None:
        """Lowers the bound after a round of `num_tokens` tokens, of which `num_drafted` were of drafts. *Mutates*.

        Raises: OutOfMemory for a round that cannot be smaller.
        """
        self.num_failures += 1
        self._fitted = 0
        if num_tokens <= 1:
            raise OutOfMemory(f"there is no memory for a round of one token: {self._advice} ({error})") from error
        self.tokens = num_tokens - -(-num_drafted // 2) if num_drafted else num_tokens // 2
        # once: a device that is full is so for many rounds
        say = log.warning if self.num_failures == 1 else log.debug
        say(
            "there was no memory for a round of %d tokens, %d of them of drafts; it runs again with %d. %s",
            *(num_tokens, num_drafted, self.tokens, self._advice),
        )

    def count_fitted(self) -> None:
        """Counts a round that fitted. *Mutates*: the bound may rise."""
        if self.tokens == MAX_VALUE:
            return
        self._fitted += 1
        if self._fitted == ROUNDS_TO_RISE:
            self._fitted = 0
            self.tokens = min(MAX_VALUE, self.tokens + max(1, self.tokens // 8))
