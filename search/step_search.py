"""The knobs that every search over steps has in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.core import SamplingParams
from decoding.validation import require_count, require_switch
from search.aggregation import check_aggregation
from search.voting import check_rule


@dataclass(frozen=True, kw_only=True)
class TreeSearch:
    """The knobs of every search over steps.

    n             the width; what that means is the strategy's
    depth         steps of a path at most; what is open then is a candidate as it is
    step_tokens   tokens of a step at most; a step that reaches them ends its branch
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    select        how the answer is chosen: `weighted`, `majority` or `best`
    merge         siblings that say the same are one branch, as good as the best of them, whose continuations take
                  turns (FETCH, arXiv 2502.11183)
    early_stop    end when the leading answer is ahead by this share of the solutions still to come: with 1 they cannot
                  change it any more, 0.5 is SPEX's; None never
    sampling      how steps are sampled; `max_tokens` is a solution's

    Raises: ValueError naming the knob, what was wanted and what was got.
    """

    n: int = 16
    depth: int = 25
    step_tokens: int = 256
    agg_strategy: str = "last"
    select: str = "weighted"
    merge: bool = False
    early_stop: float | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)

    needs_scorer = True
    by_steps = True

    def __post_init__(self) -> None:
        for name in ("n", "depth", "step_tokens"):
            require_count(name, getattr(self, name), at_least=1)
        check_aggregation(self.agg_strategy)
        check_rule(self.select)
        require_switch("merge", self.merge)
        share = self.early_stop
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1):
            raise ValueError(f"early_stop must be in (0, 1] or null, got {share!r}")
        if share is not None and self.select == "best":
            raise ValueError("early_stop needs select=weighted or select=majority: one better score overturns the best")

    @property
    def needs_embedder(self) -> bool:
        """Merging compares steps by what they say."""
        return self.merge
