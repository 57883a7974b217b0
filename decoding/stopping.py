"""Decides which of the tokens just committed ends a generation, and for which reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from decoding.core import FinishReason, SamplingParams

Decode = Callable[[Sequence[int]], str]

# Tokens of context before a stop string, so that a decoder that treats the first token of a text
# differently (a dropped leading space, half a character) does so outside the string.
_MARGIN = 3


class StopRule:
    """Finds the end of generations. Stop strings match generated text only, across token borders."""

    def __init__(self, decode: Decode, eos_ids: frozenset[int]) -> None:
        self._decode = decode
        self._eos = eos_ids
        # Twice the token: the second copy is decoded as it is inside a text. A stop string can only be completed by a
        # token with its last character, or a part of it (decoded as U+FFFD).
        self._may_complete = lru_cache(maxsize=1 << 16)(lambda token, stop: _may_end_with(decode((token, token)), stop))

    def find_end(self, generated: Sequence[int], new: int, params: SamplingParams) -> tuple[int, FinishReason | None]:
        """Returns the length at which `generated` ends and the reason, or its whole length and None.

        Only the last `new` tokens can be its end; the tokens before them were tested in earlier rounds.
        """
        # one function for all tests: there is a call for each branch and round
        stop, stop_ids, most = params.stop, params.stop_token_ids, params.max_tokens
        for length in range(len(generated) - new + 1, len(generated) + 1):
            last = generated[length - 1]
            if last in self._eos:
                return length, "eos"
            if last in stop_ids:
                return length, "stop"
            # decoding a tail for every token of every branch would cost as much as a small model
            if stop and self._may_complete(last, stop) and self._ends_with_stop(generated, length, stop):
                return length, "stop"
            # after eos and stop: a stop at the last allowed token is a stop
            if length >= most:
                return length, "length"
        return len(generated), None

    def _ends_with_stop(self, generated: Sequence[int], length: int, stop: tuple[str, ...]) -> bool:
        # Every token but special ones has at least one byte, so this many tokens hold the longest string.
        window = max(len(s.encode()) for s in stop) + _MARGIN
        tail = self._decode(generated[max(0, length - window) : length])
        return any(s in tail for s in stop)


def _may_end_with(text: str, stop: tuple[str, ...]) -> bool:
    """Returns whether a token with this text may be the last of a stop string; a special token has no text."""
    return not text or "\ufffd" in text or any(s[-1] in text for s in stop)
