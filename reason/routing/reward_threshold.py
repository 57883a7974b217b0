"""RSD: the draft's step stays if the reward model likes it well enough (arXiv 2501.19324)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.validation import require_share
from reason.routing.base import Crossroads, Needs, Stateless, Verdict
from reason.routing.scoring import score_step


@dataclass(frozen=True, kw_only=True)
class RewardThreshold(Stateless):
    """The large model writes the step if the draft's scores below `threshold`, or has no score.

    threshold   0.7 as published
    """

    threshold: float = 0.7
    needs: ClassVar[Needs] = "draft"
    needs_scorer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_share("threshold", self.threshold)

    async def read(self, at: Crossroads) -> Verdict:
        assert at.draft is not None
        score, spent = await score_step(at.scorer, at.before, at.draft)
        return Verdict("target" if score is None or score < self.threshold else "draft", score, spent)
