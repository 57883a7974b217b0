"""Compares many searches on few problems first, and goes on with those that are not behind: successive halving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reason.bench.evaluation import SAMPLING, compare_accuracy
from reason.bench.problem_values import correct_answers, tokens_per_problem
from reason.bench.runs import RunOutcome, RunSpec
from reason.runs.metrics import PairedDifference

SAME_COST = 1.1
"""A search that needs at most so many times the tokens of another is as cheap."""


@dataclass(frozen=True)
class DroppedRun:
    """A search that was given up.

    leader      the most accurate search that is as cheap
    difference  how far the leader is ahead of it, on the problems so far
    """

    outcome: RunOutcome
    leader: RunSpec
    difference: PairedDifference


def plan_rungs(first: int, num_problems: int) -> list[int]:
    """Returns the numbers of problems after which searches are dropped, doubled up to all problems.

    >>> plan_rungs(50, 400), plan_rungs(30, 100), plan_rungs(9, 4)
    ([50, 100, 200, 400], [30, 60, 100], [4])
    """
    rungs = [first]
    while rungs[-1] < num_problems:
        rungs.append(2 * rungs[-1])
    return [*rungs[:-1], num_problems]


def find_behind(outcomes: Sequence[RunOutcome]) -> list[DroppedRun]:
    """Returns the searches to drop, the one that is furthest behind first; at most half of those that may be.

    A search is behind if the 95 % interval of its paired difference to another one, which is as cheap, excludes 0. So
    nothing is dropped that could be on the front of accuracy against tokens. Baselines stay, since all
    others are compared with them. Many searches are compared with one leader, so some are dropped by chance.

    Successive halving is Karnin et al. 2013 (sequential halving); they drop half of the arms at each rung, behind or
    not.
    """
    candidates = [outcome for outcome in outcomes if outcome.spec.search not in SAMPLING]
    behind = []
    for outcome in candidates:
        limit = SAME_COST * tokens_per_problem(outcome)
        rivals = [o for o in outcomes if o is not outcome and tokens_per_problem(o) <= limit]
        leader = max(rivals, key=lambda rival: float(correct_answers(rival.rows).mean()), default=None)
        if leader is not None and (difference := compare_accuracy(leader, outcome)).low > 0:
            behind.append(DroppedRun(outcome, leader.spec, difference))
    return sorted(behind, key=lambda one: -one.difference.value)[: len(candidates) // 2]


def halve(
    specs: Sequence[RunSpec],
    rungs: Sequence[int],
    execute: Callable[[RunSpec, int], RunOutcome],
) -> tuple[list[RunOutcome], list[DroppedRun]]:
    """Executes all runs on the problems of the first rung, those that are left on the second, and so on.

    Returns the outcomes of those that ran on all problems, and the dropped ones in the order in which they were
    dropped. A stopped comparison goes on where it was: decisions follow from rows, and those of a rung
    from the problems of that rung alone.

    execute  returns the outcome of a run on so many problems, from the first; a part that is on disk is only read
    """
    dropped: list[DroppedRun] = []
    left = list(specs)
    outcomes: list[RunOutcome] = []
    for rung in rungs:
        outcomes = [execute(spec, rung) for spec in left]
        if rung != rungs[-1]:
            dropped += (behind := find_behind(outcomes))
            given_up = [one.outcome.spec for one in behind]
            left = [spec for spec in left if spec not in given_up]
    return outcomes, dropped
