"""Aggregates step scores into path scores, and chooses a solution by majority, weighted vote or best score. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from decoding.validation import require_choice

AGGREGATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda scores: scores[-1],
    "min": min,
    "prod": math.prod,
    "mean": lambda scores: math.fsum(scores) / len(scores),
}
VOTING_RULES = ("majority", "weighted", "best")
TOURNAMENT = "tournament"
"""The choice by a judge that compares solutions; votes are counted for its seeds and ties."""
UNSCORED = ("median", "ignore")


@dataclass(frozen=True)
class VotingResult:
    """Index of the chosen solution (None if there is none) and the votes of each answer."""

    index: int | None
    votes: dict[str, float]


def validate_aggregation(name: str) -> None:
    """Checks the name of an aggregation. Raises: ValueError naming the valid choices."""
    require_choice("agg_strategy", name, tuple(AGGREGATIONS))


def validate_voting_rule(voting_rule: str) -> None:
    """Checks the name of a voting rule. Raises: ValueError naming the valid choices."""
    require_choice("select", voting_rule, (*VOTING_RULES, TOURNAMENT))


def validate_unscored(unscored: str) -> None:
    """Checks how solutions without a score vote. Raises: ValueError naming the valid choices."""
    require_choice("unscored", unscored, UNSCORED)


def aggregate_scores(scores: Sequence[float], agg_strategy: str) -> float:
    """Aggregates the step scores of a path into one; `agg_strategy` is `last`, `min`, `prod` or `mean`.

    >>> aggregate_scores([0.5, 0.8], "prod")
    0.4

    Raises: ValueError for no scores or an unknown `agg_strategy`.
    """
    validate_aggregation(agg_strategy)
    if not scores:
        raise ValueError("cannot aggregate the scores of a path without steps")
    return AGGREGATIONS[agg_strategy](scores)


def fill_unscored(scores: Sequence[float | None]) -> list[float]:
    """Returns the scores with the median of the others in place of None, as votes have it; 0 where there are none.

    >>> fill_unscored([0.25, None, 0.75, 0.5]), fill_unscored([None])
    ([0.25, 0.5, 0.75, 0.5], [0.0])
    """
    median = statistics.median([score for score in scores if score is not None] or [0.0])
    return [median if score is None else score for score in scores]


def tally_votes(
    answers: Sequence[str | None], scores: Sequence[float | None], voting_rule: str, unscored: str = "median"
) -> dict[str, float]:
    """Counts the votes of each answer, in order of first appearance; a solution without an answer has no vote.

    `majority` counts solutions, and so does `tournament` before it is held; `weighted` adds up their scores, `best`
    takes the highest score. Where no solution with
    an answer is scored, all rules count solutions. Where some are, `unscored` decides about the others:

    median  they have the median score of the scored ones; where they are more than those, `best` becomes `weighted`:
            one score among many solutions without any does not tell which is best
    ignore  they have no vote

    >>> tally_votes(["7", "8", "7", None], [0.5, 0.9, 0.25, 1.0], "weighted")
    {'7': 0.75, '8': 0.9}
    >>> tally_votes(["7", "8", "8", "8"], [0.25, None, None, None], "best")
    {'7': 0.25, '8': 0.75}
    """
    validate_voting_rule(voting_rule)
    validate_unscored(unscored)
    voters = [(a, s) for a, s in zip(answers, scores, strict=True) if a is not None]
    scored = [s for _, s in voters if s is not None]
    if voting_rule in ("majority", TOURNAMENT) or not scored:
        voting_rule, weighed = "majority", [(a, 1.0) for a, _ in voters]
    elif unscored == "ignore":
        weighed = [(a, s) for a, s in voters if s is not None]
    else:
        weighed = [(a, s) for (a, _), s in zip(voters, fill_unscored([s for _, s in voters]), strict=True)]
        if len(voters) > 2 * len(scored):
            voting_rule = "weighted"
    by_answer: dict[str, list[float]] = {}
    for answer, weight in weighed:
        by_answer.setdefault(answer, []).append(weight)
    # fsum, not sum: it rounds once, so a sum does not depend on the order in which solutions finished.
    combine = max if voting_rule == "best" else math.fsum
    return {answer: combine(weights) for answer, weights in by_answer.items()}


def choose_voters(
    answers: Sequence[str | None], scores: Sequence[float | None], keep: float, unscored: str = "median"
) -> list[int]:
    """Returns the solutions that vote where only this share of those with an answer does, in order, at least one.

    They are the ones with the highest scores, the first of equals (the filter of DeepConf, arXiv 2508.15260, section
    3.2). Those without a score rank as `tally_votes` weighs them. All solutions vote where none with an answer is
    scored, or where `keep` is 1.

    >>> choose_voters(["7", "8", None, "7", "9"], [0.5, 0.9, 1.0, 0.6, None], 0.5)
    [1, 3]
    """
    with_answer = [i for i, answer in enumerate(answers) if answer is not None]
    scored = [i for i in with_answer if scores[i] is not None]
    if keep == 1 or not scored:
        return list(range(len(answers)))
    filled = fill_unscored([scores[i] if answer is not None else None for i, answer in enumerate(answers)])
    voters = with_answer if unscored == "median" else scored
    ranked = sorted(voters, key=lambda i: -filled[i])  # stable
    # without rounding errors: 0.1 of 30 is 3
    return sorted(ranked[: max(1, math.ceil(round(keep * len(voters), 9)))])


def majority_error_bound(votes: Mapping[str, float]) -> float:
    """Probability that the leader of a majority vote is not the more frequent of the two leading answers.

    With a uniform prior over the ratio of the two answers, I_(1/2)(a + 1, b + 1) for a votes of the first and b of the
    second (the Beta criterion of Adaptive-Consistency, arXiv 2305.11860).

    >>> [round(majority_error_bound(votes), 3) for votes in ({"7": 4, "8": 0}, {"7": 3, "8": 3}, {})]
    [0.031, 0.5, 1.0]
    """
    if not votes:
        return 1.0
    first, second = _leading_counts(votes)
    return _beta_below_half(first + 1, second + 1)


def expected_gain(votes: Mapping[str, float], num_samples: int) -> float:
    """Returns what another sample of a majority vote may win.

    That is the share of all answers by which the second of the two leading ones is more frequent than the first,
    expected over the posterior of `majority_error_bound`, per sample that was drawn. A vote that no answer wins may win
    little, as its leading answers have a small share.

    votes        of each answer
    num_samples  samples that were drawn, those without an answer included

    >>> [round(expected_gain(v, 4), 4) for v in ({"7": 2, "8": 2}, {"7": 1, "8": 1, "9": 1}, {"7": 4}, {})]
    [0.0391, 0.0234, 0.0013, 0.0156]
    """
    first, second = _leading_counts(votes)
    a, b = first + 1, second + 1
    # E[max(0, 1 - 2q)], q the share of the first of the two: P(q < 1/2) - 2 E[q; q < 1/2]
    behind = _beta_below_half(a, b) - 2 * a / (a + b) * _beta_below_half(a + 1, b)
    return max(first + second, 1) / num_samples * behind / num_samples


def _leading_counts(votes: Mapping[str, float]) -> tuple[int, int]:
    first, second = (int(count) for count in [*sorted(votes.values(), reverse=True), 0, 0][:2])
    return first, second


@lru_cache(maxsize=4096)  # plans ask for the same few counts again and again
def _beta_below_half(a: int, b: int) -> float:
    """P(q < 1/2) for q from Beta(a, b): for integers the binomial tail P(X >= a), X from B(a + b - 1, 1/2), exact."""
    trials = a + b - 1
    return float(sum(math.comb(trials, successes) for successes in range(a, trials + 1)) / 2**trials)


def leading_share(votes: Mapping[str, float]) -> float:
    """Returns the share of the votes that the leading answer has; 0 where there are none.

    >>> leading_share({"7": 3, "8": 1}), leading_share({})
    (0.75, 0.0)
    """
    total = math.fsum(votes.values())
    return max(votes.values()) / total if total > 0 else 0.0


def is_majority_certain(votes: Mapping[str, float], num_remaining: int) -> bool:
    """Returns whether `num_remaining` further solutions cannot change the answer with the most votes.

    votes  of each answer, in order of first appearance: a tie goes to the first

    >>> votes = {"7": 3, "8": 1}
    >>> is_majority_certain(votes, 2), is_majority_certain(votes, 3), is_majority_certain({"8": 1, "7": 3}, 2)
    (True, False, False)
    """
    if not votes:
        return False
    leader = max(votes, key=votes.__getitem__)
    names = list(votes)
    before = max((votes[name] + 1 for name in names[: names.index(leader)]), default=0)  # these would win a tie
    behind = max((votes[name] for name in names[names.index(leader) + 1 :]), default=0)
    return votes[leader] >= num_remaining + max(before, behind)


def choose_solution(
    answers: Sequence[str | None], scores: Sequence[float | None], voting_rule: str, unscored: str = "median"
) -> VotingResult:
    """Chooses the solution with the highest score among those with the answer that wins `tally_votes`.

    Ties go to the answer, then to the solution, that comes first. Where no solution has an answer, the one with the
    highest score is chosen.

    >>> choose_solution(["7", "8", "7"], [0.5, 0.9, 0.6], "weighted")
    VotingResult(index=2, votes={'7': 1.1, '8': 0.9})
    """
    votes = tally_votes(answers, scores, voting_rule, unscored)
    winner = max(votes, key=votes.__getitem__) if votes else None
    return VotingResult(_index_of_best([i for i, answer in enumerate(answers) if answer == winner], scores), votes)


def _index_of_best(indices: Sequence[int], scores: Sequence[float | None]) -> int | None:
    """The index with the highest score, the first of equals; unscored ones rank below all scored ones."""

    def rank(index: int) -> float:
        score = scores[index]
        return -math.inf if score is None else score

    return max(indices, key=rank, default=None)
