"""Sample `n` whole solutions and keep the best scored."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.core import SamplingParams, Tokens
from decoding.validation import require_count
from search.aggregation import check_aggregation
from search.sample import sample_and_choose
from search.strategy import Resources, SearchResult


@dataclass(frozen=True, kw_only=True)
class BestOfN:
    """`n` independent samples; the solution with the highest score wins, those with an answer first.

    n             how many solutions
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    sampling      how each solution is sampled

    Raises: ValueError naming the knob, what was wanted and what was got.
    """

    n: int = 16
    agg_strategy: str = "last"
    sampling: SamplingParams = field(default_factory=SamplingParams)

    needs_scorer = True
    needs_embedder = False
    by_steps = False

    def __post_init__(self) -> None:
        require_count("n", self.n, at_least=1)
        check_aggregation(self.agg_strategy)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        return await sample_and_choose(
            root, resources, n=self.n, sampling=self.sampling, rule="best", agg_strategy=self.agg_strategy
        )
