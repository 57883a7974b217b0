"""Plain rounds in a row of which a resting gate is asked nothing: it hears at their end what they took together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Nap:
    """Rounds of `branches` branches.

    left         rounds that are still to come
    longest      seconds that a round counts at most: one that another process slowed down says little
    num_planned  rounds that were planned
    num_timed    rounds whose seconds are known; together, `seconds`
    """

    branches: int
    left: int
    longest: float
    num_planned: int = 0
    num_timed: int = 0
    seconds: float = 0.0

    def plan_round(self, branches: int) -> bool:
        """Returns whether the next round, of so many branches, belongs to the nap. *Mutates*."""
        if not self.left or branches != self.branches:
            return False
        self.left -= 1
        self.num_planned += 1
        return True

    def add_round(self, seconds: float) -> None:
        """Adds what a round took. *Mutates*."""
        self.num_timed += 1
        self.seconds += min(seconds, self.longest)
