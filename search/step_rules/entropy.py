"""Steps that end where the model is unsure how to go on: before a token of high entropy, as in CNTP and TreePO."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoding.core import MAX_NUM_TOP, Tokens, Vector
from decoding.validation import require_count, require_not_negative
from search.steps import Decode, StepRule

_STRETCH = 64  # tokens generated at a time: half of it is thrown away on average


@dataclass(frozen=True, kw_only=True)
class EntropySteps(StepRule):
    """Ends a step before a token whose distribution has an entropy above `threshold`, or after `max_tokens`.

    A search over steps chooses the token anew in every continuation: it branches where the model hesitates.

    threshold   nats
    min_tokens  shortest step
    max_tokens  longest step
    num_top     tokens that a server is asked for at every place; the entropy of those is what is known of the whole one

    >>> rule = EntropySteps(threshold=1.0, min_tokens=2, max_tokens=4)
    >>> rule.find_end((5, 6, 7, 8), 0, str, np.array([2.0, 2.0, 0.1, 1.5], dtype=np.float32))
    3
    """

    threshold: float = 1.0
    min_tokens: int = 32
    max_tokens: int = 512
    num_top: int = MAX_NUM_TOP

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative("step.threshold", self.threshold)
        require_count("step.max_tokens", self.max_tokens, at_least=max(1, self.min_tokens))
        require_count("step.num_top", self.num_top, at_least=1, at_most=MAX_NUM_TOP)

    @property
    def stretch_tokens(self) -> int:
        """See `StepRule`."""
        return min(self.max_tokens, self.min_tokens + _STRETCH)

    @property
    def ends_before_tokens(self) -> bool:
        """See `StepRule`."""
        return True

    def find_end(self, tokens: Tokens, start: int, decode: Decode, entropies: Vector | None = None) -> int | None:
        """See `StepRule`. Raises: ValueError without entropies."""
        if entropies is None:
            if tokens:
                raise ValueError("step=entropy needs the entropies of tokens, and this engine measured none")
            return None
        first, limit = start + max(1, self.min_tokens), start + self.max_tokens
        unsure = np.flatnonzero(entropies[first:limit] > self.threshold)
        if len(unsure):
            return first + int(unsure[0])
        return limit if limit <= len(tokens) else None
