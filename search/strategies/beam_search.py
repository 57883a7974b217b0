"""Beam search: of `n` next steps keep the best few, and continue each as often (arXiv 2408.03314)."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.validation import require_count
from search.allocation import best_widths
from search.level_search import Allocation, Frontier, LevelSearch


@dataclass(frozen=True, kw_only=True)
class BeamSearch(LevelSearch):
    """Every level the best `n / beam_width` branches go on, each `beam_width` times.

    beam_width    continuations of each branch that is kept
    """

    depth: int = 40
    beam_width: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("beam_width", self.beam_width, at_least=1)
        if self.beam_width > self.n:
            raise ValueError(f"beam_width must be at most n={self.n}, got {self.beam_width}")

    async def allocate(self, frontier: Frontier, width: int) -> Allocation:
        return Allocation(best_widths(frontier.scores, width, keep=-(-width // self.beam_width)))
