"""Self-consistency: samples `n` whole solutions and chooses the most frequent answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.core import SamplingParams, Tokens
from decoding.validation import require_count, require_number, require_share
from search.sample import sample_and_choose
from search.strategy import Resources, SearchResult
from search.voting import TOURNAMENT, validate_aggregation, validate_unscored, validate_voting_rule
from search.weak_branches import DropKnobs


@dataclass(frozen=True, kw_only=True)
class SelfConsistency(DropKnobs):
    """Chooses the solution with the highest score among those with the answer that wins the vote of `n` samples.

    `DropKnobs` describes the knobs of dropping solutions.

    n             number of solutions
    select        `majority` counts solutions, `weighted` adds up scores, `best` is best-of-N, `tournament` has
                  a judge compare them (`search.strategies.tournament`)
    unscored      the vote of a solution without a score: `median` of the others, or `ignore`
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    keep          share of the solutions that vote, those with the highest scores; below 1 it needs a scorer
    stop_error    ends the sampling when the majority is wrong with at most this probability; None samples all `n`
    stop_share    ends it when, of `warm_up` solutions or more, the leading answer has at least this share of the votes
    sampling      sampling parameters of each solution

    Raises: ValueError naming the knob, its constraint and its value.
    """

    n: int = 16
    select: str = "majority"
    unscored: str = "median"
    agg_strategy: str = "last"
    keep: float = 1.0
    stop_error: float | None = None
    stop_share: float | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)

    needs_embedder = False
    by_steps = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("n", self.n, at_least=1)
        self.require_later_solutions(self.n)
        validate_voting_rule(self.select)
        validate_unscored(self.unscored)
        validate_aggregation(self.agg_strategy)
        require_share("keep", self.keep, above_zero=True)
        if self.stop_error is not None:
            require_number("stop_error", self.stop_error, low=0, high=0.5)
            if self.select != "majority":
                raise ValueError("stop_error needs select=majority: it bounds the error of a count")
            if self.keep < 1:
                raise ValueError("stop_error needs keep=1: it bounds the error of a count of all solutions")
        if self.stop_share is not None:
            self._require_share_of_votes()

    def _require_share_of_votes(self) -> None:
        require_share("stop_share", self.stop_share, above_zero=True)
        if self.stop_error is not None:
            raise ValueError("stop_share and stop_error both end the sampling; leave one of them null")
        if self.select not in ("majority", "weighted"):
            raise ValueError(f"stop_share needs select=majority or weighted, got {self.select}: others have no shares")
        if self.keep < 1:
            raise ValueError("stop_share needs keep=1: it is a share of the votes of all solutions")
        if self.warm_up >= self.n:
            raise ValueError(f"warm_up must be below n={self.n}, got {self.warm_up}: stop_share leaves out later ones")

    @property
    def continues_samples(self) -> bool:
        """Whether `Resources.earlier` may hold the first of the `n` solutions, as it does where a run divides samples
        among its problems: nothing but the count of their answers decides about the others."""
        decides_by_count = self.select == "majority" and self.keep == 1
        return decides_by_count and self.drop_percentile is None and self.stop_share is None

    @property
    def needs_scorer(self) -> bool:
        """Whether votes depend on scores; counting all solutions does not."""
        return self.select not in ("majority", TOURNAMENT) or self.keep < 1

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
            stop_share=self.stop_share,
            keep=self.keep,
            drop=self,
        )
