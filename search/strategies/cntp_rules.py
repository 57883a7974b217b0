"""Rules of cautious next token prediction: when to try several ways, where a trial ends, which one stays. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoding.core import Tokens, Vector
from search.steps import Decode, StepRule
from search.tree import LOGPROB_DECIMALS


@dataclass(frozen=True, kw_only=True)
class TrialSteps(StepRule):
    """Ends a piece of a solution before an unsure token; a piece that begins with one is a trial and ends soon.

    A trial ends with the first token that holds one of `marks`, or after `trial_tokens`.

    threshold  entropy in nats above which a token is unsure

    >>> rule = TrialSteps(threshold=0.5, trial_tokens=3, marks=".;")
    >>> ends = np.array([0.1, 0.2, 0.9, 0.0, 0.0], dtype=np.float32)
    >>> rule.find_end((1, 2, 3, 4, 5), 0, str, ends), rule.find_end((1, 2, 3, 4, 5), 2, str, ends)
    (2, 5)
    """

    threshold: float = 0.5
    trial_tokens: int = 10
    marks: str = ".,;:!?\n"

    @property
    def stretch_tokens(self) -> int:
        """See `StepRule`."""
        return self.trial_tokens

    def is_trial(self, entropies: Vector | None) -> bool:
        """Returns whether a piece with tokens of these entropies is a trial. Raises: ValueError without entropies."""
        if entropies is None:
            raise ValueError("search=cntp needs the entropies of tokens, and this engine measured none")
        return bool(len(entropies) and entropies[0] > self.threshold)

    def find_end(self, tokens: Tokens, start: int, decode: Decode, entropies: Vector | None = None) -> int | None:
        """See `StepRule`. Raises: ValueError without entropies."""
        if start >= len(tokens):
            return None
        if self.is_trial(None if entropies is None else entropies[start:]):
            limit = start + self.trial_tokens
            for end in range(start + 1, min(limit, len(tokens)) + 1):
                if end == limit or any(mark in decode(tokens[end - 1 : end]) for mark in self.marks):
                    return end
            return None
        assert entropies is not None
        unsure = np.flatnonzero(entropies[start:] > self.threshold)
        return start + int(unsure[0]) if len(unsure) else None


def count_trials(entropy: float, *, unsure: float, very_unsure: float, few: int, many: int) -> int:
    """Returns the number of trials at a place: 1 up to `unsure` nats, `few` up to `very_unsure`, `many` above.

    >>> [count_trials(entropy, unsure=0.5, very_unsure=3.5, few=3, many=8) for entropy in (0.5, 0.6, 3.5, 3.6)]
    [1, 3, 3, 8]
    """
    if entropy <= unsure:
        return 1
    return few if entropy <= very_unsure else many


def choose_trial(trials: Sequence[Sequence[float]]) -> int:
    """Returns the index of the most probable trial, by the log-probabilities of their tokens; of equals, the first.

    They are compared over the length of the shortest: a longer one is not less probable for its length. To four
    decimals per token, because more of them depend on the batch.

    >>> choose_trial([(-0.5, -0.1), (-0.2, -0.1, -9.0), (-0.2, -0.1)])
    1
    """
    shortest = min(map(len, trials))
    sums = [math.fsum(round(logprob, LOGPROB_DECIMALS) for logprob in trial[:shortest]) for trial in trials]
    rounded = [round(total, LOGPROB_DECIMALS) for total in sums]
    return rounded.index(max(rounded))
