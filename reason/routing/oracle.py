"""The upper bound of step-level routing: both models write, the reward model chooses (arXiv 2512.05033, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.core import Spent
from decoding.validation import require_number
from reason.routing.base import Crossroads, Needs, Stateless, Verdict
from reason.routing.scoring import score_step


@dataclass(frozen=True, kw_only=True)
class Oracle(Stateless):
    """The large model's step is kept if it scores more than `threshold` above the draft's. Saves nothing: both write.

    threshold   in [-1, 1]; 0 keeps the better
    """

    threshold: float = 0.0
    needs: ClassVar[Needs] = "both"
    needs_scorer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_number("threshold", self.threshold, low=-1, high=1)

    async def read(self, at: Crossroads) -> Verdict:
        return self.choose(*await score_both(at))

    def choose(self, draft: float | None, target: float | None, spent: Spent) -> Verdict:
        """The verdict on two scores; the large model's step where one is missing."""
        if draft is None or target is None:
            return Verdict("target", None, spent)
        advantage = target - draft
        return Verdict("target" if advantage > self.threshold else "draft", advantage, spent)


async def score_both(at: Crossroads) -> tuple[float | None, float | None, Spent]:
    """The scores of the draft's and the target's step, None where there is none, and what reading cost."""
    assert at.draft is not None
    assert at.target is not None
    draft, one = await score_step(at.scorer, at.before, at.draft)
    target, other = await score_step(at.scorer, at.before, at.target)
    return draft, target, one + other
