"""Selects a delayed tree for every branch and round, from how often its draft tokens were accepted.

The selector of Delayed Tree Expansion (arXiv 2602.16994) is a network over hidden states, trained for each pair of
models. Ours needs no training: it has the expected tokens of each shape in closed form. With a, the acceptance rate of
the branch, and g(K), how many times as often one of K draws is accepted as a single one (measured over all branches), a
shape (L1, K, L2) accepts

    a + ... + a^L1  +  a^L1 * min(1, a g(K)) * (1 + a + ... + a^(L2 - 1))

draft tokens. The shape with most tokens per second is drafted. It is chosen before anything is drawn, so every rule
stays lossless.

Shapes: S tree shapes, B branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from decoding.speculation.controllers.branch_memory import forget_oldest, store_latest
from decoding.speculation.controllers.cost_curve import CostCurve
from decoding.speculation.controllers.delayed import MAX_LENGTH, MAX_PATHS, make_delayed
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from decoding.validation import require_count, require_share

Numbers = npt.NDArray[np.float64]

_PRIOR = 8.0  # weight of the gain of independent draws, in forks


@dataclass
class DelayedSelector:
    """Implements `Controller`.

    longest    maximum nodes of the trunk, and of each path below it
    paths      maximum paths below it
    smoothing  weight of the newest draft token in a branch's moving acceptance rate
    first      acceptance rate of a new branch
    """

    longest: int = 8
    paths: int = 4
    smoothing: float = 0.1
    first: float = 0.7
    curve: CostCurve = field(default_factory=CostCurve)
    acceptance_rates: dict[int, float] = field(init=False, default_factory=dict, repr=False)
    uses_template: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("longest", self.longest, at_least=1, at_most=MAX_LENGTH)
        require_count("paths", self.paths, at_least=1, at_most=MAX_PATHS)
        for name in ("smoothing", "first"):
            require_share(name, getattr(self, name), above_zero=True, below_one=True)
        lengths = range(self.longest + 1)
        # One path below a trunk is a longer trunk; without a node nothing would be learned.
        self._shapes = [(trunk, 1, 0) for trunk in lengths if trunk]
        self._shapes += [(t, k, n) for t in lengths for k in range(2, self.paths + 1) for n in lengths if n]
        self._shapes.sort(key=lambda shape: shape[0] + shape[1] * shape[2])  # stable: of equals the fewest nodes
        self._sizes_S = np.array([trunk + paths * length for trunk, paths, length in self._shapes])
        draws_K = np.arange(self.paths + 1)
        self._single_K: Numbers = np.full(len(draws_K), _PRIOR * self.first)
        self._hits_K: Numbers = np.asarray(_PRIOR * (1 - (1 - self.first) ** draws_K), dtype=np.float64)

    def expected_tokens(self, rate: float) -> Numbers:
        """Returns `[S]`: the expected accepted tokens of every shape for a branch of this acceptance rate."""
        trunk_S, draws_S, length_S = np.array(self._shapes).T
        chain = np.concatenate([[0.0], np.cumsum(rate ** np.arange(self.longest + 1))])  # 0, 1, 1 + a, ...
        fork_S = np.minimum(1.0, rate * self._hits_K[draws_S] / self._single_K[draws_S])
        tokens_S: Numbers = rate * chain[trunk_S] + rate**trunk_S * fork_S * chain[length_S]
        return tokens_S

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        each = load.spare_tokens // max(1, len(branches))
        affordable = self._sizes_S <= each
        if not branches or not affordable.any():
            return DraftPlan((0,) * len(branches), 0)
        most = int(self._sizes_S[affordable].max()) * len(branches)
        seconds_N = self.curve.estimate_cost(len(branches), most, load.context_tokens).seconds_N
        # As if all branches had this shape: the choice of one does not change the round that it pays for.
        seconds_S = seconds_N[self._sizes_S[affordable] * len(branches)]
        templates = []
        for branch in branches:
            tokens_S = self.expected_tokens(self.acceptance_rates.get(branch.request_id, self.first))[affordable]
            chosen = int(np.argmax((1 + tokens_S) / seconds_S))
            templates.append(make_delayed(*self._shapes[int(np.flatnonzero(affordable)[chosen])]))
        sizes = tuple(map(len, templates))
        return DraftPlan(sizes, sum(sizes), own_templates=tuple(templates))

    def calibrate_cost(self, costs: Sequence[RoundCost], row_counts: Sequence[int] = ()) -> None:
        self.curve = CostCurve(tuple(costs), tuple(row_counts))

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        if cost is not None:
            self.curve.observe(cost)
        for outcome in feedback:
            rate = self.acceptance_rates.get(outcome.branch.request_id, self.first)
            accepted = set(outcome.accepted_nodes)
            for node in (-1, *outcome.accepted_nodes):
                draws = _count_draws(outcome.draft, node)
                if draws == 0:
                    break
                hit = any(outcome.draft.parents[child] == node for child in accepted)
                if draws == 1:
                    rate += self.smoothing * (hit - rate)
                elif draws < len(self._hits_K):
                    self._single_K[draws] += rate
                    self._hits_K[draws] += hit
            store_latest(self.acceptance_rates, outcome.branch.request_id, rate)
        forget_oldest(self.acceptance_rates)


def _count_draws(draft: Draft, node: int) -> int:
    """Returns the number of draws after a node; a token drawn twice is one node of two draws."""
    if draft.sampling_record is not None:
        return len(draft.sampling_record.children.get(node, ()))
    return draft.parents.count(node)
