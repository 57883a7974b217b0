"""The arithmetic of Monte Carlo tree search: which child, and how many of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

RULES = ("uct", "puct")


@dataclass
class Arm:
    """A child as its parent sees it.

    first    what it is believed to be worth before it was tried, as much as one visit; None if nobody knows
    visits   simulations that went through it and are done; their values add up to `total`
    losses   simulations on their way through it, each counted as a visit worth nothing (virtual loss)
    prior    how likely the writer finds it, relative to its siblings
    """

    first: float | None = None
    visits: int = 0
    total: float = 0.0
    losses: int = 0
    prior: float = 1.0

    @property
    def tries(self) -> int:
        """Visits, virtual ones included."""
        return self.visits + self.losses

    @property
    def mean(self) -> float:
        """What a visit was worth on average; 0.5 where nothing is known."""
        known = self.first is not None
        count = self.tries + known
        return (self.total + (self.first or 0.0)) / count if count else 0.5


def best_arm(arms: Sequence[Arm], rule: str, exploration: float) -> int:
    """The index of the child to visit; of equals, the first.

    uct   mean + c sqrt(ln(1 + N) / (1 + n)), after UCB1 (Kocsis, Szepesvari 2006); the 1 stands for the first belief
    puct  mean + c prior sqrt(1 + N) / (1 + n), as in AlphaZero (Silver et al. 2017); priors are normalised

    N are the tries of all arms, n of this one. Means are in [0, 1].
    """
    everyone = sum(arm.tries for arm in arms)
    priors = math.fsum(arm.prior for arm in arms) or 1.0

    def bound(index: int) -> float:
        arm = arms[index]
        if rule == "uct":
            return arm.mean + exploration * math.sqrt(math.log1p(everyone) / (1 + arm.tries))
        return arm.mean + exploration * (arm.prior / priors) * math.sqrt(1 + everyone) / (1 + arm.tries)

    return max(range(len(arms)), key=bound)


def children_wanted(tries: int, constant: float, exponent: float, most: int) -> int:
    """Progressive widening (Coulom 2007): a node may have `constant * (1 + tries) ** exponent` children, at least one.

    >>> [children_wanted(tries, 2.0, 0.5, most=5) for tries in (0, 1, 3, 8)]
    [2, 2, 4, 5]
    """
    return min(most, max(1, math.floor(constant * math.pow(1 + tries, exponent))))
