"""Words of doubt decide, after Speculative Thinking (arXiv 2504.12329)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from decoding.validation import require_count
from reason.routing.base import Crossroads, Needs, Stateless, Verdict

CUES = ("wait", "alternatively", "hmm", "but", "however", "verify", "check", "let me think", "maybe", "actually")


@dataclass(frozen=True, kw_only=True)
class Cue(Stateless):
    """The large model writes the step if the draft's holds at least `threshold` of these words.

    threshold   a count
    cues        words or phrases, case ignored
    """

    threshold: int = 1
    cues: tuple[str, ...] = CUES
    needs: ClassVar[Needs] = "draft"
    needs_scorer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_count("threshold", self.threshold, at_least=1)
        object.__setattr__(self, "cues", tuple(self.cues))
        if not self.cues or not all(isinstance(cue, str) and cue.strip() for cue in self.cues):
            raise ValueError(f"cues must hold words, got {list(self.cues)!r}")

    async def read(self, at: Crossroads) -> Verdict:
        assert at.draft is not None
        found = len(re.findall("|".join(rf"\b{re.escape(cue)}\b" for cue in self.cues), at.draft.text, re.IGNORECASE))
        return Verdict("target" if found >= self.threshold else "draft", float(found))
