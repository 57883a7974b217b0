"""Beam search: of `n` next steps keep the best few, and continue each as often (arXiv 2408.03314)."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.core import SamplingParams, Tokens
from search.aggregate import check_aggregation
from search.allocate import best_widths
from search.base import Resources, SearchResult
from search.knobs import require_count
from search.levels import Frontier, Levels, search_by_levels
from search.vote import check_rule


@dataclass(frozen=True, kw_only=True)
class BeamSearch:
    """Every level the best `n / beam_width` branches go on, each `beam_width` times.

    n             how many branches at once
    beam_width    continuations of each branch that is kept
    depth         levels at most
    step_tokens   tokens of a step at most
    hand_back     a finished branch's width goes to the others
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    select        how the answer is chosen: `weighted`, `majority` or `best`
    sampling      how steps are sampled; `max_tokens` is a solution's

    Raises: ValueError naming the knob, what was wanted and what was got.
    """

    n: int = 16
    beam_width: int = 4
    depth: int = 40
    step_tokens: int = 256
    hand_back: bool = False
    agg_strategy: str = "last"
    select: str = "weighted"
    sampling: SamplingParams = field(default_factory=SamplingParams)

    needs_scorer = True

    def __post_init__(self) -> None:
        for name in ("n", "beam_width", "depth", "step_tokens"):
            require_count(name, getattr(self, name), at_least=1)
        if self.beam_width > self.n:
            raise ValueError(f"beam_width must be at most n={self.n}, got {self.beam_width}")
        check_aggregation(self.agg_strategy)
        check_rule(self.select)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        def rule(frontier: Frontier, width: int) -> list[int]:
            return best_widths(frontier.scores, width, keep=-(-width // self.beam_width))

        return await search_by_levels(
            root,
            resources,
            Levels(n=self.n, depth=self.depth, step_tokens=self.step_tokens, hand_back=self.hand_back),
            rule=rule,
            sampling=self.sampling,
            agg_strategy=self.agg_strategy,
            select=self.select,
        )
