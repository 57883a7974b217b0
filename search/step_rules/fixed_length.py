"""Steps of a fixed number of tokens, the segments of TreePO (arXiv 2508.17445)."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.core import Tokens, Vector
from decoding.validation import require_count
from search.steps import Decode, StepRule


@dataclass(frozen=True, kw_only=True)
class FixedLengthSteps(StepRule):
    """Ends every step after `tokens` tokens.

    >>> FixedLengthSteps(tokens=3).find_end((1, 2, 3, 4, 5), 0, str), FixedLengthSteps(tokens=3).find_end((1,), 0, str)
    (3, None)
    """

    tokens: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("step.tokens", self.tokens, at_least=max(1, self.min_tokens))

    @property
    def max_tokens(self) -> int:
        """See `StepRule`."""
        return self.tokens

    def find_end(self, tokens: Tokens, start: int, decode: Decode, entropies: Vector | None = None) -> int | None:
        """See `StepRule`."""
        end = start + self.tokens
        return end if end <= len(tokens) else None
