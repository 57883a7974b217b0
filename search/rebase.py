"""REBASE: the better a branch's score, the more continuations it gets (arXiv 2408.00724)."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.core import SamplingParams, Tokens
from search.aggregate import check_aggregation
from search.allocate import softmax_widths
from search.base import Resources, SearchResult
from search.knobs import require_count, require_positive
from search.levels import Frontier, Levels, search_by_levels
from search.vote import check_rule


@dataclass(frozen=True, kw_only=True)
class Rebase:
    """Every level, `n` continuations are dealt out in proportion to softmax(score / temperature).

    n             how many branches at once
    temperature   of the softmax over scores; 0.2 as published (0.1 in DORA's account of it)
    depth         levels at most
    step_tokens   tokens of a step at most
    hand_back     a finished branch's width goes to the others
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    select        how the answer is chosen: `weighted`, `majority` or `best`
    sampling      how steps are sampled; `max_tokens` is a solution's

    Widths are dealt by largest remainder, which is not what the published code does (see `allocate`).

    Raises: ValueError naming the knob, what was wanted and what was got.
    """

    n: int = 16
    temperature: float = 0.2
    depth: int = 25
    step_tokens: int = 256
    hand_back: bool = False
    agg_strategy: str = "last"
    select: str = "weighted"
    sampling: SamplingParams = field(default_factory=SamplingParams)

    needs_scorer = True

    def __post_init__(self) -> None:
        for name in ("n", "depth", "step_tokens"):
            require_count(name, getattr(self, name), at_least=1)
        require_positive("temperature", self.temperature)
        check_aggregation(self.agg_strategy)
        check_rule(self.select)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        def rule(frontier: Frontier, width: int) -> list[int]:
            return softmax_widths(frontier.scores, width, self.temperature)

        return await search_by_levels(
            root,
            resources,
            Levels(n=self.n, depth=self.depth, step_tokens=self.step_tokens, hand_back=self.hand_back),
            rule=rule,
            sampling=self.sampling,
            agg_strategy=self.agg_strategy,
            select=self.select,
        )
