"""Routes by words of doubt in the small model's step, after Speculative Thinking (arXiv 2504.12329)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from decoding.validation import require_count
from reason.routing.base import RoutingContext, RoutingDecision, StatelessRouter

CUES = ("wait", "alternatively", "hmm", "but", "however", "verify", "check", "let me think", "maybe", "actually")


@dataclass(frozen=True, kw_only=True)
class CueRouter(StatelessRouter):
    """The target model writes the step if the small model's step holds at least `threshold` of these words.

    threshold   a count of words
    cues        words or phrases, case ignored
    """

    threshold: int = 1
    cues: tuple[str, ...] = CUES

    def __post_init__(self) -> None:
        require_count("threshold", self.threshold, at_least=1)
        object.__setattr__(self, "cues", tuple(self.cues))
        if not self.cues or not all(isinstance(cue, str) and cue.strip() for cue in self.cues):
            raise ValueError(f"cues must hold words, got {list(self.cues)!r}")

    async def choose_author(self, context: RoutingContext) -> RoutingDecision:
        assert context.small_step is not None
        pattern = "|".join(rf"\b{re.escape(cue)}\b" for cue in self.cues)
        num_cues = len(re.findall(pattern, context.small_step.text, re.IGNORECASE))
        return RoutingDecision("target" if num_cues >= self.threshold else "draft", float(num_cues))
