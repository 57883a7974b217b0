"""Steps that end before a word of reflection, such as "Wait": the places where a thought turns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from decoding.core import Tokens, Vector
from decoding.validation import require_words
from search.steps import Decode, StepRule

MARKERS = ("Wait", "Alternatively", "Hmm", "However", "Let me check", "Let me think")


@dataclass(frozen=True, kw_only=True)
class MarkerSteps(StepRule):
    """Ends a step before the token that begins one of `markers` behind white space.

    A search over steps generates the tokens of the marker again in every continuation: whether the thought turns here
    is decided anew.

    >>> rule = MarkerSteps(markers=("Wait",), min_tokens=0)
    >>> rule.find_end(tuple(b"2 + 2 = 5. Wait, no"), 0, lambda ids: bytes(ids).decode())
    11
    """

    markers: Sequence[str] = MARKERS
    min_tokens: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        require_words("step.markers", self.markers)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """See `StepRule`."""
        return tuple(f"{space}{marker}" for marker in self.markers for space in (" ", "\n"))

    @property
    def ends_before_tokens(self) -> bool:
        """See `StepRule`."""
        return True

    def find_end(self, tokens: Tokens, start: int, decode: Decode, entropies: Vector | None = None) -> int | None:
        """See `StepRule`."""
        width = max(64, 2 * self.min_tokens)
        while True:
            window = tokens[start : start + width]
            text = decode(window)
            for match in self._pattern.finditer(text):
                length = _count_tokens(window, match.start(), decode)
                if length >= max(1, self.min_tokens):
                    return start + length
            if start + width >= len(tokens):
                return None
            width *= 2

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf"(?<=\s)(?:{'|'.join(map(re.escape, self.markers))})")


def _count_tokens(tokens: Tokens, length: int, decode: Decode) -> int:
    """The largest number of tokens whose text has at most `length` characters."""
    low, high = 0, len(tokens)
    while high - low > 1:
        middle = (low + high) // 2
        if len(decode(tokens[:middle])) <= length:
            low = middle
        else:
            high = middle
    return low
