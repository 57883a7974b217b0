"""Controller that adds draft nodes, best-first over the whole batch, while the next one raises tokens per second.

With B branches a round commits B tokens plus, in expectation, the sum of its draft nodes' path probabilities, and takes
the seconds of the cost curve. In order of falling probability the rate rises and then falls; drafts end at the maximum,
which may be at no nodes (DESIGN D4). Whether a round drafts at all is for `SpeculationGate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

from decoding.speculation.controllers.cost_curve import CostCurve
from decoding.speculation.controllers.nap import Nap
from decoding.speculation.controllers.node_cost import NodeCost
from decoding.speculation.controllers.speculation_gate import RoundKind, SpeculationGate
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from decoding.validation import require_count


@dataclass
class ThroughputController:
    """Implements `Controller`.

    max_draft_tokens  maximum draft nodes of a round
    curve             cost of rounds; one measured at start-up makes the first decisions accurate
    """

    max_draft_tokens: int = 512
    curve: CostCurve = field(default_factory=CostCurve)
    uses_template: ClassVar[bool] = False
    _gate: SpeculationGate = field(default_factory=SpeculationGate, init=False, repr=False)
    _node_cost: NodeCost = field(default_factory=NodeCost, init=False, repr=False)
    _kind: RoundKind = field(default="plain", init=False, repr=False)
    # branches and context of the round that was planned last, and its seconds without drafts
    _expected: tuple[int, int, float] = field(default=(0, 0, 0.0), init=False, repr=False)
    _nap: Nap | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        require_count("max_draft_tokens", self.max_draft_tokens)

    @property
    def seconds_saved(self) -> float:
        return self._gate.seconds_saved

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        count = len(branches)
        if self._nap is not None:
            if self._nap.plan_round(count):
                return _plan_nothing(count)
            self._gate.end_nap(self._nap, self._expected[2])
            self._nap = None
        plain = self.curve.round_seconds(count, 0, load.context_tokens)
        self._expected = count, load.context_tokens, plain
        self._kind = "plain"
        if count and self.max_draft_tokens:
            with_nodes = self.curve.round_seconds(count, count, load.context_tokens)
            trials_before = self._gate.num_trials
            self._kind = self._gate.plan_round(count, plain, with_nodes - plain)
            if self._gate.num_trials > trials_before:
                self._node_cost.begin_trial()
        if self._kind != "drafted":
            return _plan_nothing(count, learns=self._kind == "learning")
        total = min(self.max_draft_tokens, load.spare_tokens)
        estimate = self.curve.estimate_cost(
            count,
            total,
            load.context_tokens,
            plain_factor=self._gate.plain_factor(count),
            node_factor=self._node_cost.factor,
            drafting=self._node_cost.drafting,
        )
        return DraftPlan((total,) * count, total, estimate)

    def calibrate_cost(self, costs: Sequence[RoundCost], row_counts: Sequence[int] = ()) -> None:
        self.curve = CostCurve(tuple(costs), tuple(row_counts))

    def trust_drafter(self) -> None:
        self._gate.trust_drafter()

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        if cost is None:
            return
        if self._nap is not None:
            self._nap.add_round(cost.seconds)
            return
        *planned, plain = self._expected
        if planned != [cost.num_branches, cost.context_tokens]:
            plain = self.curve.round_seconds(cost.num_branches, 0, cost.context_tokens)
        tokens = cost.num_branches + sum(len(outcome.accepted_nodes) for outcome in feedback)
        self._gate.observe(self._kind, cost.num_branches, tokens, cost.seconds, plain)
        if self._kind == "plain":
            self._nap = self._gate.begin_nap(cost.num_branches, plain)
        if num_nodes := cost.num_tokens - cost.num_branches:
            factor = self._gate.plain_factor(cost.num_branches)
            with_nodes = self.curve.round_seconds(cost.num_branches, num_nodes, cost.context_tokens)
            self._node_cost.observe(cost.seconds, factor * plain, factor * (with_nodes - plain))


@lru_cache(maxsize=1024)
def _plan_nothing(count: int, *, learns: bool = False) -> DraftPlan:
    # kept: most rounds of many branches have one of these
    return DraftPlan((0,) * count, 0, collect_feedback=learns)
