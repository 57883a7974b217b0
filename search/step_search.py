"""Knobs of all searches over steps. A new knob needs a field here and a line in `conf/search/_step_search.yaml`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoding.core import SamplingParams
from decoding.validation import (
    is_number,
    require_count,
    require_not_negative,
    require_package,
    require_share,
    require_switch,
    shorten,
)
from search.allocation import validate_normalisation
from search.tree import SearchTree
from search.voting import TOURNAMENT, validate_aggregation, validate_unscored, validate_voting_rule


@dataclass(frozen=True, kw_only=True)
class StepSearch:
    """Base of all searches over steps.

    n             width of the search; its meaning is the strategy's
    depth         maximum steps of a path, None: only tokens limit it; a branch open then is a candidate as it is
    step_tokens   maximum tokens per step; a longer one goes on in the next step. Of no effect where all have one length
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    normalise     scale of the scores by which the width is given, among the branches of one depth: `none`, `rank`,
                  `zscore` or `logit`. Of no effect where their order alone counts. Votes have the scores as they are
    select        how the answer is chosen: `weighted`, `majority`, `best` or `tournament` (`strategies.tournament`)
    unscored      the vote of a solution without a score: `median` of the others, or `ignore`
    merge         whether siblings with the same meaning count as one branch, with the highest of their scores, whose
                  continuations they take in turn (FETCH, arXiv 2502.11183)
    merge_extra   further continuations of a merged branch for each member beyond the first, as a share of its own; at
                  most as many again (0.5 in FETCH). They come on top of `n`
    early_stop    ends the search when the lead of the first answer is at least this share of the votes still to come:
                  with 1 the vote is decided, 0.5 is SPEX's; None never ends it. `astar` and `mcts` count one vote for
                  each solution still to come, although several branches may end with it: 1 is no proof there
    give_up       path score below which a branch is hopeless; None: none is by its score alone
    give_up_share  the same as a share of the best score of a finished solution with an answer so far; None: none is
    give_up_after  successive steps after which a hopeless branch is pruned, whatever width is left
    sampling      sampling parameters of the steps; `max_tokens` limits the whole solution

    Raises: ValueError naming the knob, its constraint and its value.
    """

    n: int = 16
    depth: int | None = None
    step_tokens: int = 256
    agg_strategy: str = "last"
    normalise: str = "none"
    select: str = "weighted"
    unscored: str = "median"
    merge: bool = False
    merge_extra: float = 0.0
    early_stop: float | None = None
    give_up: float | None = None
    give_up_share: float | None = None
    give_up_after: int = 2
    sampling: SamplingParams = field(default_factory=SamplingParams)

    needs_scorer = True
    by_steps = True

    def __post_init__(self) -> None:
        for name in ("n", "step_tokens"):
            require_count(name, getattr(self, name), at_least=1)
        require_count("depth", self.depth, at_least=1, or_null=True)
        validate_aggregation(self.agg_strategy)
        validate_normalisation(self.normalise)
        validate_voting_rule(self.select)
        validate_unscored(self.unscored)
        require_switch("merge", self.merge)
        if self.merge:
            require_package("merge=true", "scipy")
        require_not_negative("merge_extra", self.merge_extra)
        if self.merge_extra and not self.merge:
            raise ValueError(f"merge_extra needs merge=true, got {shorten(self.merge_extra)}")
        for name in ("give_up", "give_up_share"):
            if getattr(self, name) is not None:
                require_share(name, getattr(self, name), above_zero=True)
        require_count("give_up_after", self.give_up_after, at_least=1)
        share = self.early_stop
        if share is not None and (not is_number(share, low=0, high=1) or share == 0):
            raise ValueError(f"early_stop must be in (0, 1] or null, got {shorten(share)}")
        if share is not None and self.merge_extra:
            raise ValueError("early_stop needs merge_extra=0: further continuations add votes that it does not count")
        if share is not None and self.select in ("best", TOURNAMENT):
            why = "one better score overturns the best" if self.select == "best" else "a judge may choose any answer"
            raise ValueError(f"early_stop needs select=weighted or select=majority: {why}")

    def find_parts(self, tree: SearchTree, nodes: Sequence[int]) -> list[int]:
        """Returns for each node the part of the search that it is in; branches of different parts do not merge."""
        del tree
        return [0] * len(nodes)

    @property
    def needs_embedder(self) -> bool:
        """Whether steps are compared by their meaning; merging does."""
        return self.merge
