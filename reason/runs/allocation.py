"""Divides one budget of samples among the problems of a run: more for problems whose vote is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.validation import MAX_INT, require_count
from search.voting import expected_gain, majority_error_bound, tally_votes

ROUND_SHARE = 4
"""Each round gives samples to one of so many problems: those that can gain most."""


@dataclass(frozen=True)
class GivenSamples:
    """What one problem has so far.

    answers      of its samples, in the order of their requests; None: a sample has none
    num_samples  samples that it was given
    is_closed    whether it gets no more: it failed, or its own budget ended
    """

    answers: Sequence[str | None] = ()
    num_samples: int = 0
    is_closed: bool = False


@dataclass(frozen=True, kw_only=True)
class SampleAllocation:
    """Divides `samples` times the problems of a run among these problems, in rounds.

    Every problem starts with `first` samples. In each round `batch` more go to the quarter of the problems that can
    be expected to gain most (`search.voting.expected_gain`). That one budget is divided by what each problem gains is
    Damani et al. 2024 (arXiv 2410.04707); they learn the gain, which needs gold answers. Ours needs none.

    samples  samples per problem, on average
    first    samples that every problem starts with
    batch    samples that a problem gets at a time

    Raises: ValueError naming the knob, its constraint and its value.
    """

    samples: int
    first: int = 2
    batch: int = 2

    def __post_init__(self) -> None:
        for name in ("samples", "first", "batch"):
            require_count(f"allocation.{name}", getattr(self, name), at_least=1, at_most=MAX_INT)
        if self.first >= self.samples:
            raise ValueError(
                f"allocation.first must be below allocation.samples={self.samples}, got {self.first}: "
                "what is left is divided"
            )

    def plan_samples(self, given: Sequence[GivenSamples], most: int, stop_error: float | None = None) -> list[int]:
        """Returns how many samples each problem is to have after the round that is not written yet.

        They are as many as all have once the budget is spent. The rounds so far are planned again, from the samples
        that each of them knew: so the plan depends neither on which problem was faster nor on where a run was stopped.

        most        samples that one problem may get
        stop_error  a problem whose majority is wrong with at most this probability gets no more; None: it may

        >>> allocation = SampleAllocation(samples=3, first=2, batch=2)
        >>> agreed, open_vote = GivenSamples(["7", "7"], 2), GivenSamples(["7", "8"], 2)
        >>> allocation.plan_samples([agreed, open_vote, agreed], most=16)
        [2, 4, 2]
        """
        targets = [min(self.first, most)] * len(given)
        left = self.samples * len(given) - sum(targets)
        while left > 0 and all(
            problem.num_samples >= target or problem.is_closed for problem, target in zip(given, targets, strict=True)
        ):
            votes = {
                i: tally_votes(known := problem.answers[:target], [None] * len(known), "majority")
                for i, (problem, target) in enumerate(zip(given, targets, strict=True))
                if target < most and not (problem.is_closed and problem.num_samples <= target)
            }
            undecided = [i for i in votes if stop_error is None or majority_error_bound(votes[i]) > stop_error]
            if not undecided:
                break
            undecided.sort(key=lambda i: -expected_gain(votes[i], targets[i]))  # stable: the first of equals
            for i in undecided[: -(-len(given) // ROUND_SHARE)]:
                more = min(self.batch, most - targets[i], left)
                targets[i] += more
                left -= more
        return targets
