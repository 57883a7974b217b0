"""When a generation ends: which of the tokens just committed is its last, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from decoding.core import FinishReason, SamplingParams

Decode = Callable[[Sequence[int]], str]

# Tokens of context before a stop string, so that a decoder that treats the first token of a text
# differently (a dropped leading space, half a character) does so outside the string.
_MARGIN = 3


class StopRule:
    """Finds the end of generations. Stop strings are looked for in generated text only, across token borders."""

    def __init__(self, decode: Decode, eos_ids: frozenset[int]) -> None:
        self._decode = decode
        self._eos = eos_ids
        # Twice the token: the second copy reads as it does inside a text.
        self._text_of = lru_cache(maxsize=1 << 16)(lambda token: decode((token, token)))

    def first_end(self, generated: Sequence[int], new: int, params: SamplingParams) -> tuple[int, FinishReason | None]:
        """How many of `generated` to keep and the reason to end there, or all of them and None.

        Only the last `new` tokens are looked at as ends; those before have been looked at already.
        """
        for length in range(len(generated) - new + 1, len(generated) + 1):
            if reason := self._reason(generated, length, params):
                return length, reason
        return len(generated), None

    def _reason(self, generated: Sequence[int], length: int, params: SamplingParams) -> FinishReason | None:
        last = generated[length - 1]
        if last in self._eos:
            return "eos"
        if last in params.stop_token_ids or (params.stop and self._stops(generated, length, params.stop)):
            return "stop"
        return "length" if length >= params.max_tokens else None

    def _stops(self, generated: Sequence[int], length: int, stop: tuple[str, ...]) -> bool:
        # Decoding a tail for every token of every branch would cost as much as a small model. A stop
        # string can only be completed by a token that brings its last character, or a part of it.
        text = self._text_of(generated[length - 1])
        if text and "\ufffd" not in text and not any(s[-1] in text for s in stop):
            return False
        # Every token but special ones brings at least a byte, so this many tokens hold the longest string.
        window = max(len(s.encode()) for s in stop) + _MARGIN
        tail = self._decode(generated[max(0, length - window) : length])
        return any(s in tail for s in stop)
