"""Knobs of all searches that write prompts of their own: they revise solutions, or go on from notes about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from decoding.core import SamplingParams
from decoding.validation import require_count
from search.templates import Places, validate_templates
from search.voting import TOURNAMENT, validate_aggregation, validate_unscored, validate_voting_rule


@dataclass(frozen=True, kw_only=True)
class RevisionSearch:
    """Base of the searches that write prompts of their own.

    n             solutions at a time, each of them revised; the last ones vote
    select        how the answer is chosen: `majority`, `weighted`, `best` or `tournament` (`strategies.tournament`)
    unscored      the vote of a solution without a score: `median` of the others, or `ignore`
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    templates     the texts of the prompts, by name; `places` says what they hold
    sampling      sampling parameters; `max_tokens` limits the solution behind each prompt

    Raises: ValueError naming the knob, its constraint and its value.
    """

    places: ClassVar[Mapping[str, Places]] = {}

    n: int = 1
    select: str = "majority"
    unscored: str = "median"
    agg_strategy: str = "last"
    templates: Mapping[str, str] = field(default_factory=dict)
    sampling: SamplingParams = field(default_factory=SamplingParams)

    needs_embedder = False
    by_steps = False
    writes_prompts = True
    """Whether it begins new contexts, so that a request need not begin with the problem's prompt."""

    def __post_init__(self) -> None:
        require_count("n", self.n, at_least=1)
        validate_voting_rule(self.select)
        validate_unscored(self.unscored)
        validate_aggregation(self.agg_strategy)
        validate_templates(self.templates, self.places)

    @property
    def needs_scorer(self) -> bool:
        """Whether votes depend on scores; counting solutions does not."""
        return self.select not in ("majority", TOURNAMENT)

    @property
    def continues_text(self) -> bool:
        """Whether requests continue earlier output."""
        return False
