"""Contracts of speculation: drafters, controllers and acceptance rules, and the data that they exchange.

Free of torch, like `decoding.core`. Draft trees themselves are in `draft.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from decoding.core import SamplingParams, Tokens
from decoding.speculation.draft import Draft, DraftSampling, TreeTemplate, VerifyResult
from decoding.token_view import TokenView

if TYPE_CHECKING:  # imports torch
    from decoding.speculation.target_logits import TargetLogits

TokenIds = npt.NDArray[np.int64]
LogProbs = npt.NDArray[np.float32]
HiddenStates = npt.NDArray[np.float32]


class Branch(NamedTuple):
    """A running request as drafters and controllers get it: all its committed tokens.

    A named tuple, because every round makes one for each request. `remaining` tokens may still be generated, so a
    draft deeper than `remaining - 1` is of no use.
    """

    request_id: int
    group: str
    tokens: Tokens | TokenView
    seed: int
    params: SamplingParams
    remaining: int


@dataclass(frozen=True)
class BatchLoad:
    """Load of the engine before a round.

    num_running, num_waiting   branches
    context_tokens             tokens that the branches of this round attend to, summed
    spare_tokens               draft nodes that fit this round without preempting a request
    """

    num_running: int
    num_waiting: int
    context_tokens: int
    spare_tokens: int


@dataclass(frozen=True, eq=False)
class CostEstimate:
    """Expected duration of a round by its number of draft nodes.

    seconds_N   `[1 + most]`: with 0, 1, ... nodes; at least the duration with fewer nodes
    corners     numbers of nodes, ascending to the largest, between which the duration changes along a line
    keep_gain   share of what the best number of nodes gains in tokens per second that is enough, for fewer nodes
    drafting_seconds  of all these durations: when nodes are chosen they are spent, also if none is
    """

    seconds_N: npt.NDArray[np.float64]
    corners: tuple[int, ...]
    keep_gain: float = 1.0
    drafting_seconds: float = 0.0

    @classmethod
    def along_line(cls, round_seconds: float, seconds_per_node: float, most: int) -> CostEstimate:
        """Returns the estimate of a machine on which every one of up to `most` nodes takes as long."""
        # above 0: of rounds that take no time the rate would be the same whatever they commit
        nodes_N = np.arange(most + 1, dtype=np.float64)
        return cls(np.asarray(max(round_seconds, 1e-12) + seconds_per_node * nodes_N, dtype=np.float64), (most,))

    @property
    def round_seconds(self) -> float:
        """Duration of the round without drafts and drafting."""
        return float(self.seconds_N[0]) - self.drafting_seconds

    @cached_property
    def least_seconds(self) -> float:
        """The least that one more node takes; 0 where a GPU computes rows that only fill up."""
        # between corners each takes as long, and the first one after a corner takes more: the last ones are enough
        last_nodes = [corner for corner in self.corners if corner]
        return min([float(self.seconds_N[node] - self.seconds_N[node - 1]) for node in last_nodes], default=0.0)

    def count_worthwhile(self, probabilities_N: npt.NDArray[np.floating], branches: int) -> int:
        """Returns the fewest draft nodes that gain `keep_gain` of the most expected tokens per second (DESIGN D4).

        A round commits one token per branch and, in expectation, the sum of the path probabilities of its nodes, which
        are given in falling order.

        >>> estimate = CostEstimate.along_line(1.0, 0.2, most=3)
        >>> estimate.count_worthwhile(np.array([0.9, 0.5, 0.1]), branches=1)     # 1.9/1.2, 2.4/1.4, 2.5/1.6
        2
        """
        most = min(len(probabilities_N), len(self.seconds_N) - 1)
        tokens = branches + np.concatenate([[0.0], np.cumsum(probabilities_N[:most])])
        rates = tokens / self.seconds_N[: most + 1]
        # Not more than the maximum, to which the sum may round up: then no rate would do.
        least = min(rates.max(), rates[0] + self.keep_gain * (rates.max() - rates[0]))
        # argmax takes the first True: the fewest nodes, also of several at the best rate.
        return int(np.argmax(rates >= least))

    def min_probability(self, branches: int) -> float:
        """Returns the path probability below which no node raises the rate, which is lowest without nodes."""
        return min(0.9, branches / float(self.seconds_N[0]) * self.least_seconds)


@dataclass(frozen=True)
class DraftPlan:
    """Limits for the drafts of one round.

    max_nodes         maximum nodes for each branch
    max_total         maximum nodes over all branches
    cost_estimate     take no more nodes than raise tokens per second; None where they are free
    template          fill this shape instead of the likeliest nodes; `max_nodes` cut it per branch
    own_templates     as `template`, one for each branch
    collect_feedback  whether the drafter observes the outcome of the round
    least_probabilities  minimum path probability of a node, for each branch; empty for none
    """

    max_nodes: tuple[int, ...]
    max_total: int
    cost_estimate: CostEstimate | None = None
    template: TreeTemplate | None = None
    collect_feedback: bool = True
    own_templates: tuple[TreeTemplate, ...] = ()
    least_probabilities: tuple[float, ...] = ()

    @property
    def templates(self) -> tuple[TreeTemplate, ...]:
        """The shape of each branch; empty where nodes are selected by their probability."""
        return self.own_templates if self.template is None else (self.template,) * len(self.max_nodes)


@dataclass(frozen=True)
class Feedback:
    """Outcome of one round for one branch, with the target's top tokens after *every* fed row, rejected ones too.

    Row 0 is the last committed token, row `1 + i` is draft node `i`. `accepted_nodes` are in path order; the branch is
    as it was before the round. `topk_ids` and `topk_logprobs` are `[1 + len(draft), k]` arrays of the target's
    distribution at temperature 1 after each row, or None when `feedback_k` is 0.

    hidden   `[new tokens, D]`: for each token that the round committed, the target's last hidden state from which it
             was chosen, that of the token before it; None for a drafter that does not read it (`reads_hidden`)
    """

    branch: Branch
    draft: Draft
    accepted_nodes: tuple[int, ...]
    topk_ids: TokenIds | None = None
    topk_logprobs: LogProbs | None = None
    hidden: HiddenStates | None = None

    def top_tokens(self) -> tuple[TokenIds, LogProbs]:
        """Returns `topk_ids` and `topk_logprobs`, for a drafter whose `feedback_k` is above 0."""
        assert self.topk_ids is not None
        assert self.topk_logprobs is not None
        return self.topk_ids, self.topk_logprobs


@dataclass(frozen=True)
class RoundCost:
    """Measured duration of a round without prefill: `num_tokens` were fed for `num_branches`.

    Drafting is included; learning too, unless it runs beside a GPU's work.
    """

    num_branches: int
    num_tokens: int
    context_tokens: int
    seconds: float


class Drafter(Protocol):
    """Proposes draft tokens. A bad draft costs time but never changes the output under a lossless rule.

    A drafter whose attribute `reads_hidden` is True gets the target's hidden states in its feedback.
    One whose attribute `is_trained` is True drafts as well in the first round as in later ones.
    """

    @property
    def feedback_k(self) -> int:
        """Number of the target's top tokens per row that `observe` needs; 0 = none."""
        ...

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        """Returns one draft per branch, within the plan."""
        ...

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Learns from a finished round. *Mutates* the drafter only."""
        ...


def reads_hidden(drafter: object) -> bool:
    """Whether a drafter or a source reads the target's hidden states. A plug-in need not have the attribute."""
    return bool(getattr(drafter, "reads_hidden", False))


def is_trained(drafter: object) -> bool:
    """Whether a drafter or a source need not learn before it drafts well. A plug-in need not have the attribute."""
    return bool(getattr(drafter, "is_trained", False))


class Controller(Protocol):
    """Decides the number of draft nodes of each round."""

    @property
    def uses_template(self) -> bool:
        """Whether its plans carry a template.

        Without one, nodes are selected by their probability, which is lossless for `coupled` and `likely` drafts only.
        """
        ...

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        """Returns the limits of this round's drafts; all zeros is plain decoding."""
        ...

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        """Learns from a finished round. *Mutates* the controller only.

        `feedback` is empty for a round without drafts whose plan collects none, and of a drafter that never learns;
        `cost` is None for one with prefill.
        """
        ...


@runtime_checkable
class TrustsDrafter(Protocol):
    """Controller that would wait until a drafter has learned."""

    def trust_drafter(self) -> None:
        """Says that the drafter is trained: it may draft from the first rounds on. *Mutates*."""
        ...


class AcceptanceRule(Protocol):
    """Decides which nodes of each draft are accepted. Pure: the same inputs give the same result."""

    @property
    def lossless(self) -> bool:
        """Whether the output is distributed as (or equal to) plain decoding's."""
        ...

    @property
    def supported_sampling(self) -> tuple[DraftSampling, ...]:
        """The draft sampling schemes for which `lossless` holds; the first is the default."""
        ...

    def verify_drafts(
        self, branches: Sequence[Branch], drafts: Sequence[Draft], target: TargetLogits
    ) -> list[VerifyResult]:
        """Returns one result per branch; the tokens of its accepted nodes are the draft's."""
        ...
