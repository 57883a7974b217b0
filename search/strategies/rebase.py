"""REBASE: the better a branch's score, the more continuations it gets (arXiv 2408.00724)."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.validation import require_positive
from search.allocation import softmax_widths
from search.level_search import Allocation, Frontier, LevelSearch


@dataclass(frozen=True, kw_only=True)
class Rebase(LevelSearch):
    """Every level, `n` continuations are dealt out in proportion to softmax(score / temperature).

    temperature   of the softmax over scores; 0.2 as published (0.1 in DORA's account of it)

    Widths are dealt by largest remainder, which is not what the published code does (see `allocate`).
    """

    temperature: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("temperature", self.temperature)

    async def allocate(self, frontier: Frontier, width: int) -> Allocation:
        return Allocation(softmax_widths(frontier.scores, width, self.temperature))
