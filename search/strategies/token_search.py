"""Knobs of searches that choose single tokens, so that a step may be written in several pieces."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.core import SamplingParams
from decoding.validation import require_count
from search.voting import TOURNAMENT, validate_aggregation, validate_unscored, validate_voting_rule


@dataclass(frozen=True, kw_only=True)
class TokenSearch:
    """Base of searches that look at the likely tokens of every place.

    n             number of solutions; what else it means is the search's
    select        `majority` counts solutions, `weighted` adds up scores, `best` takes the highest score, `tournament`
                  has a judge compare them (`search.strategies.tournament`)
    unscored      the vote of a solution without a score: `median` of the others, or `ignore`
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    sampling      sampling parameters of each solution

    Raises: ValueError naming the knob, its constraint and its value.
    """

    n: int = 16
    select: str = "weighted"
    unscored: str = "median"
    agg_strategy: str = "last"
    sampling: SamplingParams = field(default_factory=SamplingParams)

    needs_embedder = False
    needs_logprobs = True
    by_steps = True

    def __post_init__(self) -> None:
        require_count("n", self.n, at_least=1)
        validate_voting_rule(self.select)
        validate_unscored(self.unscored)
        validate_aggregation(self.agg_strategy)

    @property
    def needs_scorer(self) -> bool:
        """Whether votes depend on scores."""
        return self.select not in ("majority", TOURNAMENT)
