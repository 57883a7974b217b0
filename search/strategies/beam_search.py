"""Beam search: keeps the best of `n` next steps and continues each of them equally often (arXiv 2408.03314)."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.validation import require_count
from search.allocation import allocate_to_best
from search.level_search import Allocation, Frontier, LevelSearch


@dataclass(frozen=True, kw_only=True)
class BeamSearch(LevelSearch):
    """Continues the best `n / beam_width` branches of each level `beam_width` times each.

    beam_width    continuations of each branch that is kept
    """

    beam_width: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("beam_width", self.beam_width, at_least=1)
        if self.beam_width > self.n:
            raise ValueError(f"beam_width must be at most n={self.n}, got {self.beam_width}")

    async def allocate_widths(self, frontier: Frontier, width: int) -> Allocation:
        num_kept = -(-width // self.beam_width)  # rounded up
        return Allocation(allocate_to_best(frontier.scores, width, num_kept))
