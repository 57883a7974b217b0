"""Formulas of Monte Carlo tree search: which child to visit, and how many children a node may have. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SELECTION_RULES = ("uct", "puct")


@dataclass(slots=True)  # one for each node
class ChildStats:
    """Statistics of a child, from which its parent selects.

    initial_value   value before the first visit, weighted as one visit; None if unknown
    visits          completed simulations through the child; their values add up to `total_value`
    total_value     sum of the values of completed simulations
    virtual_losses  running simulations through the child, each counted as a visit with value 0
    prior           probability of the child under the model, relative to its siblings
    """

    initial_value: float | None = None
    visits: int = 0
    total_value: float = 0.0
    virtual_losses: int = 0
    prior: float = 1.0

    @property
    def num_visits(self) -> int:
        """Number of visits, virtual ones included."""
        return self.visits + self.virtual_losses

    @property
    def mean_value(self) -> float:
        """Mean value per visit, the initial value included; 0.5 without any."""
        has_initial = self.initial_value is not None
        count = self.num_visits + has_initial
        return (self.total_value + (self.initial_value or 0.0)) / count if count else 0.5


def select_child(children: Sequence[ChildStats], rule: str, exploration: float) -> int:
    """Returns the index of the child with the highest upper bound; of equals, the first.

    uct   mean + c sqrt(ln(1 + N) / (1 + n)), after UCB1 (Kocsis, Szepesvari 2006); the 1 stands for the initial value
    puct  mean + c prior sqrt(1 + N) / (1 + n), as in AlphaZero (Silver et al. 2017); priors are normalised

    N are the visits of all these children, n of this one, virtual ones included. Means are in [0, 1].
    """
    total_visits = sum([child.num_visits for child in children])
    # The order of these operations decides ties in the last bit, and with them the tree.
    if rule == "uct":
        log_visits = math.log1p(total_visits)
        bounds = [child.mean_value + exploration * math.sqrt(log_visits / (1 + child.num_visits)) for child in children]
    else:
        total_prior, root_visits = math.fsum(child.prior for child in children) or 1.0, math.sqrt(1 + total_visits)
        bounds = [
            child.mean_value + exploration * (child.prior / total_prior) * root_visits / (1 + child.num_visits)
            for child in children
        ]
    return bounds.index(max(bounds))


def max_children(num_visits: int, constant: float, exponent: float, limit: int) -> int:
    """Progressive widening (Coulom 2007): `constant * (1 + num_visits) ** exponent` children, from 1 to `limit`.

    >>> [max_children(num_visits, 2.0, 0.5, limit=5) for num_visits in (0, 1, 3, 8)]
    [2, 2, 4, 5]
    """
    return min(limit, max(1, math.floor(constant * math.pow(1 + num_visits, exponent))))
