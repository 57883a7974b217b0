"""Self-consistency: samples `n` whole solutions and chooses the most frequent answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.core import SamplingParams, Tokens
from decoding.validation import require_count, require_number
from search.sample import sample_and_choose
from search.strategy import Resources, SearchResult
from search.voting import validate_aggregation, validate_unscored, validate_voting_rule


@dataclass(frozen=True, kw_only=True)
class SelfConsistency:
    """Chooses the solution with the highest score among those with the answer that wins the vote of `n` samples.

    n             number of solutions
    select        `majority` counts solutions, `weighted` adds up scores, `best` is best-of-N
    unscored      the vote of a solution without a score: `median` of the others, or `ignore`
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    stop_error    ends the sampling when the majority is wrong with at most this probability; None samples all `n`
    sampling      sampling parameters of each solution

    Raises: ValueError naming the knob, its constraint and its value.
    """

    n: int = 16
    select: str = "majority"
    unscored: str = "median"
    agg_strategy: str = "last"
    stop_error: float | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)

    needs_embedder = False
    by_steps = False

    def __post_init__(self) -> None:
        require_count("n", self.n, at_least=1)
        validate_voting_rule(self.select)
        validate_unscored(self.unscored)
        validate_aggregation(self.agg_strategy)
        if self.stop_error is not None:
            require_number("stop_error", self.stop_error, low=0, high=0.5)
            if self.select != "majority":
                raise ValueError("stop_error needs select=majority: it bounds the error of a count")

    @property
    def needs_scorer(self) -> bool:
        """Whether votes depend on scores; counting solutions does not."""
        return self.select != "majority"

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        return await sample_and_choose(
            root,
            resources,
            n=self.n,
            sampling=self.sampling,
            voting_rule=self.select,
            unscored=self.unscored,
            agg_strategy=self.agg_strategy,
            stop_error=self.stop_error,
        )
