"""Best-of-N: samples `n` whole solutions and chooses the one with the highest score."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from decoding.core import SamplingParams, Tokens
from decoding.validation import require_count
from search.sample import sample_and_choose
from search.strategy import Resources, SearchResult
from search.voting import validate_aggregation, validate_unscored
from search.weak_branches import DropKnobs


@dataclass(frozen=True, kw_only=True)
class BestOfN(DropKnobs):
    """Chooses the solution with the highest score among `n` independent samples, those with an answer first.

    `DropKnobs` describes the knobs of dropping solutions.

    n             number of solutions
    unscored      the vote of a solution without a score: `median` of the others, or `ignore`
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    sampling      sampling parameters of each solution

    Raises: ValueError naming the knob, its constraint and its value.
    """

    n: int = 16
    unscored: str = "median"
    agg_strategy: str = "last"
    sampling: SamplingParams = field(default_factory=SamplingParams)

    select: ClassVar[str] = "best"
    needs_scorer = True
    needs_embedder = False
    by_steps = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("n", self.n, at_least=1)
        self.require_later_solutions(self.n)
        validate_unscored(self.unscored)
        validate_aggregation(self.agg_strategy)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        return await sample_and_choose(
            root,
            resources,
            n=self.n,
            sampling=self.sampling,
            voting_rule=self.select,
            unscored=self.unscored,
            agg_strategy=self.agg_strategy,
            drop=self,
        )
