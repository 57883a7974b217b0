"""SmartSpec (arXiv 2406.14066): maximises goodput with a draft per branch, whose size follows its acceptance rates.

With acceptance rate a, a chain of k commits (1 - a^(k+1)) / (1 - a) tokens in expectation. A tree commits one token and
those of its nodes, each with the product of the rates of the ranks on its path; a rate belongs to a rank among
siblings. Goodput is the sum of those over the seconds of the round. The best node of any branch that is not drafted yet
comes next, as often as makes goodput largest: a child is no likelier than its parent, and a later sibling is taken as
no likelier than an earlier one, so no other trees of as many nodes commit more.

Beyond the paper: the rates of siblings, and trials, because a branch without drafts, or without second children, would
never show that its rate has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from decoding.speculation.controllers.branch_memory import forget_oldest, store_latest
from decoding.speculation.controllers.cost_curve import CostCurve
from decoding.speculation.draft import MAX_DRAFT_SIZE, TreeTemplate
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from decoding.validation import require_count, require_share

_TRIAL_NODES = 4  # so that a branch whose rate has risen is known after a few trials

Rates = npt.NDArray[np.float64]


@dataclass
class GoodputController:
    """Implements `Controller`.

    longest    maximum draft tokens per branch
    width      maximum children of a node; 1 makes chains, as in the paper
    smoothing  weight of the newest draft token in a branch's moving acceptance rate
    first      acceptance rate of a new branch; that of later siblings is this share of what the earlier ones leave
    trial      rounds without a node of a rank after which a branch gets one whatever the rate; 0: never
    """

    longest: int = 16
    width: int = 1
    smoothing: float = 0.1
    first: float = 0.7
    trial: int = 64
    curve: CostCurve = field(default_factory=CostCurve)
    acceptance_rates: dict[int, Rates] = field(init=False, default_factory=dict, repr=False)
    """By request: the probability that a child is accepted after its accepted parent, by rank among its siblings."""
    _rests: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict, repr=False)
    # by request and rank: rounds without a node of the rank
    uses_template: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("longest", self.longest, at_most=MAX_DRAFT_SIZE)
        require_count("width", self.width, at_least=1, at_most=MAX_DRAFT_SIZE)
        require_count("trial", self.trial)
        for name in ("smoothing", "first"):
            require_share(name, getattr(self, name), above_zero=True, below_one=True)

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        if not branches:
            return DraftPlan((), 0)
        rates = [np.minimum.accumulate(self._rates_of(branch)).tolist() for branch in branches]
        most = min(load.spare_tokens, self.longest * len(branches))
        estimate = self.curve.estimate_cost(len(branches), most, load.context_tokens)
        order, gains = _grow_trees(rates, self.longest, most, estimate.min_probability(len(branches)))
        trees = [_Tree() for _ in branches]
        for branch, parent, rank in order[: estimate.count_worthwhile(np.array(gains), len(branches))]:
            trees[branch].add_node(parent, rank)
        self._begin_trials(branches, trees, most - sum(len(tree.parents) for tree in trees))
        sizes = tuple(len(tree.parents) for tree in trees)
        if self.width == 1:
            return DraftPlan(sizes, sum(sizes), template=TreeTemplate.make_chain(self.longest))
        return DraftPlan(sizes, sum(sizes), own_templates=tuple(tree.to_template() for tree in trees))

    def _rates_of(self, branch: Branch) -> Rates:
        rates = self.acceptance_rates.get(branch.request_id)
        if rates is not None:
            return rates
        return np.array([self.first * (1 - self.first) ** rank for rank in range(self.width)])

    def _begin_trials(self, branches: Sequence[Branch], trees: Sequence[_Tree], spare: int) -> None:
        """Adds nodes of the ranks that a branch has not drafted for long enough. *Mutates* the trees."""
        before, self._rests = self._rests, {}  # of the branches that run
        for branch, tree in zip(branches, trees, strict=True):
            rests = [rest + 1 for rest in before.get(branch.request_id, (0,) * self.width)]
            due = [rank for rank, rest in enumerate(rests) if self.trial and rest > self.trial]
            if due:
                spare -= tree.add_trial(max(due), spare, self.longest)
            self._rests[branch.request_id] = tuple(0 if rank in tree.ranks else rest for rank, rest in enumerate(rests))

    def calibrate_cost(self, costs: Sequence[RoundCost], row_counts: Sequence[int] = ()) -> None:
        self.curve = CostCurve(tuple(costs), tuple(row_counts))

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        if cost is not None:
            self.curve.observe(cost)
        for outcome in feedback:
            rates = self._rates_of(outcome.branch).copy()
            for rank, is_accepted in _tried_children(outcome, self.width):
                rates[rank] += self.smoothing * (is_accepted - rates[rank])
            store_latest(self.acceptance_rates, outcome.branch.request_id, rates)
        forget_oldest(self.acceptance_rates)


@dataclass
class _Tree:
    """The tree of one branch while it is planned."""

    parents: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    def add_node(self, parent: int, rank: int) -> None:
        self.parents.append(parent)
        self.ranks.append(rank)

    def add_trial(self, rank: int, spare: int, longest: int) -> int:
        """Adds a chain where there is no node, and children of the root up to `rank`; returns how many more nodes.

        Adds at most `spare`; of a tree of `longest` nodes the last ones make room. *Mutates*.
        """
        before = len(self.parents)
        if not before:
            for node in range(min(_TRIAL_NODES, spare, longest)):
                self.add_node(node - 1, 0)
        for later in range(self.parents.count(-1), rank + 1):
            if len(self.parents) >= longest > 1 and self.parents[-1] >= 0:
                # the least likely node, which is a leaf
                self.parents.pop()
                self.ranks.pop()
            if not self.parents or len(self.parents) >= min(longest, before + spare):
                break
            self.add_node(-1, later)
        return len(self.parents) - before

    def to_template(self) -> TreeTemplate:
        return TreeTemplate(tuple(self.parents), tuple(self.ranks))


def _tried_children(outcome: Feedback, width: int) -> list[tuple[int, bool]]:
    """Returns the rank of each node whose parent was accepted, and whether it was accepted itself."""
    reached, num_children = {-1, *outcome.accepted_nodes}, dict[int, int]()
    tried = []
    for node, parent in enumerate(outcome.draft.parents):
        rank = num_children[parent] = num_children.get(parent, -1) + 1
        if parent in reached and rank < width:
            tried.append((rank, node in reached))
    return tried


def _grow_trees(
    rates_BR: Sequence[Sequence[float]], longest: int, most: int, least: float
) -> tuple[list[tuple[int, int, int]], list[float]]:
    """Returns the best nodes over all branches, best first, as (branch, parent, rank), and the tokens that each adds.

    `rates_BR` fall from rank to rank. Ends after `most` nodes, or before one that adds less than `least`.
    """
    # (-gain, order of arrival, branch, parent, rank): of equals the earlier comes first, so a parent before its child
    heap = [(-rates[0], branch, branch, -1, 0) for branch, rates in enumerate(rates_BR) if longest]
    heapify(heap)
    arrivals, sizes = len(heap), [0] * len(rates_BR)
    order, gains = list[tuple[int, int, int]](), list[float]()
    while heap and len(order) < most:
        negative, _, branch, parent, rank = heappop(heap)
        if -negative < least:
            break
        if sizes[branch] == longest:
            continue
        order.append((branch, parent, rank))
        gains.append(-negative)
        rates, node = rates_BR[branch], sizes[branch]
        sizes[branch] += 1
        heappush(heap, (negative * rates[0], arrivals, branch, node, 0))
        if rank + 1 < len(rates):
            sibling = negative * rates[rank + 1] / max(rates[rank], 1e-9)
            heappush(heap, (sibling, arrivals + 1, branch, parent, rank + 1))
        arrivals += 2
    return order, gains
