"""What a router sees of a step, and what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from decoding.core import Spent
from search.base import StepScorer
from search.tree import Step

Author = Literal["draft", "target"]
Needs = Literal["nothing", "draft", "both"]


@dataclass(frozen=True)
class Crossroads:
    """A step about to be written.

    before   the steps so far
    draft    the small model's; None for a router that needs nothing
    target   the large model's; None unless the router needs both
    seed     this step's own: the same wherever and whenever it is written
    scorer   the problem's reward model, or None
    """

    before: tuple[Step, ...]
    draft: Step | None
    target: Step | None
    seed: int
    scorer: StepScorer | None


@dataclass(frozen=True)
class Verdict:
    """Who writes a step, the number that was decided by (None: none), and what reading cost."""

    author: Author
    score: float | None = None
    spent: Spent = field(default_factory=Spent)


class Router(Protocol):
    """Decides who writes each step. A frozen dataclass with one threshold.

    needs          `nothing`: the target writes unasked; `draft`: reads the draft's step; `both`: reads both, so that
                   the target writes every step whether it is kept or not
    needs_scorer   whether it cannot do without a reward model
    """

    @property
    def needs(self) -> Needs: ...
    @property
    def needs_scorer(self) -> bool: ...

    async def read(self, at: Crossroads) -> Verdict:
        """Who writes this step."""
        ...
