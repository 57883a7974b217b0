"""Controller that adds draft nodes, best-first over the whole batch, while the next one raises tokens per second.

With B branches a round commits B tokens plus, in expectation, the sum of its draft nodes' path probabilities, and takes
the seconds of the cost curve. In order of falling probability the rate rises and then falls; drafts end at the maximum,
which may be at no nodes (DESIGN D4). Where drafting is slower than plain decoding, rounds are plain except for probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from decoding.speculation.controllers.cost_curve import CostCurve
from decoding.speculation.controllers.speculation_probe import SpeculationProbe
from decoding.speculation.interfaces import BatchLoad, Branch, CostEstimate, DraftPlan, Feedback, RoundCost
from decoding.validation import require_count

_FEEDBACK_INTERVAL = 4  # the drafter observes one of so many plain rounds, because that takes time


@dataclass
class ThroughputController:
    """Implements `Controller`.

    max_draft_tokens  maximum draft nodes of a round
    curve             cost of rounds; one measured at start-up makes the first decisions accurate
    """

    max_draft_tokens: int = 512
    curve: CostCurve = field(default_factory=CostCurve)
    probe: SpeculationProbe = field(default_factory=SpeculationProbe, repr=False)
    uses_template: ClassVar[bool] = False
    _rounds: int = field(default=0, init=False, repr=False)
    _drafted: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        require_count("max_draft_tokens", self.max_draft_tokens)

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        self._rounds += 1
        self._drafted = self.probe.should_draft(len(branches))
        if not self._drafted:
            return DraftPlan((0,) * len(branches), 0, collect_feedback=self._rounds % _FEEDBACK_INTERVAL == 0)
        total = min(self.max_draft_tokens, load.spare_tokens)
        round_seconds = self.curve.round_seconds(len(branches), 0, load.context_tokens)
        return DraftPlan((total,) * len(branches), total, CostEstimate(round_seconds, self.curve.seconds_per_node))

    def calibrate_cost(self, costs: Sequence[RoundCost]) -> None:
        self.curve = CostCurve(tuple(costs))

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        if cost is None:
            return
        tokens = sum(1 + len(outcome.accepted_nodes) for outcome in feedback)
        # Before the curve observes this round: the probe compares with the expectation.
        expected = self.curve.round_seconds(cost.num_branches, 0, cost.context_tokens)
        self.probe.observe(cost.num_branches, drafted=self._drafted, tokens=tokens, cost=cost.seconds / expected)
        self.curve.observe(cost)
