"""Sample `n` whole solutions and believe the answer most of them agree on."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.core import SamplingParams, Tokens
from decoding.validation import require_count, require_number
from search.aggregation import check_aggregation
from search.sample import sample_and_choose
from search.strategy import Resources, SearchResult
from search.voting import check_rule


@dataclass(frozen=True, kw_only=True)
class SelfConsistency:
    """`n` independent samples vote; the best scored solution with the winning answer is handed back.

    n             how many solutions
    select        `majority` counts heads, `weighted` adds up scores, `best` is best-of-N
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    stop_error    end before `n` once the count of heads is wrong with at most this probability; None draws all
    sampling      how each solution is sampled

    Raises: ValueError naming the knob, what was wanted and what was got.
    """

    n: int = 16
    select: str = "majority"
    agg_strategy: str = "last"
    stop_error: float | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)

    needs_embedder = False
    by_steps = False

    def __post_init__(self) -> None:
        require_count("n", self.n, at_least=1)
        check_rule(self.select)
        check_aggregation(self.agg_strategy)
        if self.stop_error is not None:
            require_number("stop_error", self.stop_error, low=0, high=0.5)
            if self.select != "majority":
                raise ValueError("stop_error needs select=majority: it counts heads")

    @property
    def needs_scorer(self) -> bool:
        """Counting heads needs no scores."""
        return self.select != "majority"

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        return await sample_and_choose(
            root,
            resources,
            n=self.n,
            sampling=self.sampling,
            rule=self.select,
            agg_strategy=self.agg_strategy,
            stop_error=self.stop_error,
        )
