"""Chooses how many nodes each request of a round drafts, on a server that pads all trees of a batch to one size.

There are few sizes, because a GPU has captured graphs for them alone; one is 0, plain decoding. So the cost of each is
measured as it is, without a model of the machine: the seconds of its rounds over those of plain rounds. Whether a round
drafts at all is for `SpeculationGate`, as in `ThroughputController`: trials may lose a small share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoding.speculation.controllers.cost_curve import CostCurve
from decoding.speculation.controllers.speculation_gate import RoundKind, SpeculationGate
from decoding.validation import require_count

_MOST_SIZES = 3
_NEWEST = 1 / 4  # weight of the newest round in the ratio of a size
_MOST_CHANGE = 1.5  # of a ratio that one round may suggest: another process may have slowed it down
_LEAST_NODE_SHARE = 1 / 4  # of what a size takes longer than a plain round, that its number of nodes may account for
_MOST_EMPTY = 4  # rounds in a row that may choose no nodes before a size is measured again


def list_sizes(most: int) -> tuple[int, ...]:
    """Returns the numbers of nodes that rounds with drafts may have, ascending: `most`, its half and its quarter.

    >>> list_sizes(11), list_sizes(1)
    ((2, 5, 11), (1,))
    """
    return tuple(sorted({most >> halvings for halvings in range(_MOST_SIZES)} - {0}))


@dataclass
class SizeCosts:
    """Measured seconds of rounds with drafts over those of plain rounds, by nodes per branch; of one range of batches.

    Other sizes are estimated, and rather too cheap than too dear: one that looks cheap is tried, which corrects the
    estimate, one that looks dear never is. So smaller ones are on the line through a plain round. Larger ones are on
    the line through the two largest sizes that were measured; if one alone was, most of what it takes longer than a
    plain round is assumed to be the price of any draft.
    """

    ratios: dict[int, float] = field(default_factory=dict)
    last_nodes: int = 0
    num_plain: int = 0
    num_empty: int = 0

    def ratio(self, nodes: int) -> float:
        """Returns the expected ratio; some size must have been measured."""
        points = [(0, 1.0), *sorted(self.ratios.items())]
        right = next((i for i, (measured, _) in enumerate(points) if measured >= nodes), None)
        (low, low_ratio), (high, high_ratio) = points[right - 1 : right + 1] if right else points[-2:]
        slope = (high_ratio - low_ratio) / (high - low)
        if right is None:  # beyond the largest size
            slope = max(0.0, slope) * (_LEAST_NODE_SHARE if len(self.ratios) == 1 else 1)
        return high_ratio + slope * (nodes - high)

    def observe_drafted(self, nodes: int, ratio: float) -> None:
        """Records a round of the kind "drafted". *Mutates*."""
        self.num_plain = 0
        if not nodes:
            self.num_empty += 1
            if self.num_empty > _MOST_EMPTY:  # perhaps the size was measured while something else used the machine
                self.ratios.clear()
            return
        self.num_empty, self.last_nodes = 0, nodes
        before = self.ratios.get(nodes, ratio)
        clipped = min(max(ratio, before / _MOST_CHANGE), before * _MOST_CHANGE)
        self.ratios[nodes] = max(1.0, before + _NEWEST * (clipped - before))

    def observe_plain(self) -> None:
        """Forgets what is old. *Mutates*.

        One plain round between drafted ones measures anew what they are compared with; then the sizes that are not in
        use may be worth another try. More of them are a rest, after which nothing is certain.
        """
        self.num_plain, self.num_empty = self.num_plain + 1, 0
        keep = self.last_nodes if self.num_plain == 1 else None
        self.ratios = {nodes: ratio for nodes, ratio in self.ratios.items() if nodes == keep}


@dataclass
class AdaptiveNodes:
    """Plans the rounds of one server.

    sizes   nodes per branch that a round with drafts may have, ascending
    """

    sizes: tuple[int, ...]
    _costs: dict[int, SizeCosts] = field(default_factory=dict, init=False, repr=False)
    _gate: SpeculationGate = field(default_factory=SpeculationGate, init=False, repr=False)
    _curve: CostCurve = field(default_factory=CostCurve, init=False, repr=False)  # the gate corrects its scale

    def __post_init__(self) -> None:
        for nodes in self.sizes:
            require_count("sizes", nodes, at_least=1)

    def plan_round(self, branches: int, context_tokens: int) -> RoundKind:
        """Returns the kind of the next round. *Mutates*."""
        return self._gate.plan_round(branches, self._curve.round_seconds(branches, 0, context_tokens))

    def choose_nodes(self, branches: int, expected_tokens: Sequence[float]) -> int:
        """Returns the nodes per branch with the most tokens per second, 0 if no size is worth it.

        `expected_tokens` are the draft tokens that the whole batch is expected to accept, by size. The first round of a
        trial has the smallest size: it is the cheapest to be wrong about.
        """
        costs = self._costs_of(branches)
        if not costs.ratios:
            return self.sizes[0]
        best, best_rate = 0, 1.0
        for nodes, tokens in zip(self.sizes, expected_tokens, strict=True):
            rate = (1 + tokens / branches) / costs.ratio(nodes)
            if rate > best_rate:
                best, best_rate = nodes, rate
        return best

    def observe(
        self, kind: RoundKind, *, branches: int, nodes: int, context_tokens: int, tokens: int, seconds: float
    ) -> None:
        """Records a round that committed `tokens`. *Mutates*."""
        plain = self._curve.round_seconds(branches, 0, context_tokens)
        self._gate.observe(kind, branches, tokens, seconds, plain)
        if kind == "drafted":
            self._costs_of(branches).observe_drafted(nodes, seconds / (plain * self._gate.plain_factor(branches)))
        else:
            self._costs_of(branches).observe_plain()

    def _costs_of(self, branches: int) -> SizeCosts:
        """Returns the costs of the gate's range of sizes: 1, 2-3, 4-7, ... branches. *Mutates*."""
        return self._costs.setdefault(branches.bit_length(), SizeCosts())
