"""REBASE: a branch with a higher score gets more continuations (arXiv 2408.00724)."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.validation import require_positive
from search.allocation import allocate_by_softmax
from search.level_search import Allocation, Frontier, LevelSearch


@dataclass(frozen=True, kw_only=True)
class Rebase(LevelSearch):
    """Distributes `n` continuations per level in proportion to softmax(score / temperature).

    temperature   of the softmax over scores; 0.2 as published (0.1 in the description by DORA)
    normalise     `rank` suits scores of every scale; `none` as published, for scores that fill the range from 0 to 1

    Fractions are rounded by largest remainder, unlike in the published code (see `search.allocation`).
    """

    temperature: float = 0.2
    normalise: str = "rank"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("temperature", self.temperature)

    async def allocate_widths(self, frontier: Frontier, width: int) -> Allocation:
        return Allocation(allocate_by_softmax(frontier.scores, width, self.temperature))
