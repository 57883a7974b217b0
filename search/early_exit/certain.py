"""Ends a thought once the model is sure of its interim answer (DEER, arXiv 2504.15895)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.validation import require_share
from search.probes import EarlyExit, Probe


@dataclass(frozen=True, kw_only=True)
class CertainAnswer(EarlyExit):
    """Ends a thought when the probability of its interim answer, the mean over its tokens, is at least `threshold`.

    The mean is the geometric one, of a greedy probe: DEER's confidence in a trial answer. DEER asks for it where the
    thought turns: `at="turns"`.

    >>> CertainAnswer().decide([Probe(num_tokens=1, answer="7", confidence=0.97)])
    True
    """

    threshold: float = 0.95

    needs_logprobs = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share("early_exit.threshold", self.threshold, above_zero=True)

    def decide(self, probes: Sequence[Probe]) -> bool:
        """See `EarlyExit`."""
        last = probes[-1] if probes else None
        if last is None or last.answer is None or last.confidence is None:
            return False
        return last.confidence >= self.threshold
