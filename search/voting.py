"""Which of several finished solutions to believe: majority, weighted vote or best score. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from decoding.validation import require_choice

RULES = ("majority", "weighted", "best")


@dataclass(frozen=True)
class Choice:
    """`index` of the chosen solution (None: there was none) and what each answer had going for it."""

    index: int | None
    votes: dict[str, float]


def check_rule(rule: str) -> None:
    """Raises ValueError naming the valid choices when `rule` is none of them."""
    require_choice("select", rule, RULES)


def tally(answers: Sequence[str | None], scores: Sequence[float | None], rule: str) -> dict[str, float]:
    """What each answer has going for it, in order of first appearance; no answer has no vote.

    `majority` counts heads, `weighted` adds up scores, `best` takes the highest score. The score rules look
    at scored solutions only; where none of those with an answer is scored, they count heads.

    >>> tally(["7", "8", "7", None], [0.5, 0.9, 0.25, 1.0], "weighted")
    {'7': 0.75, '8': 0.9}
    """
    check_rule(rule)
    voters = [(a, s) for a, s in zip(answers, scores, strict=True) if a is not None]
    scored = [(a, s) for a, s in voters if s is not None]
    by_answer: dict[str, list[float]] = {}
    if rule == "majority" or not scored:
        rule, scored = "majority", [(a, 1.0) for a, _ in voters]
    for answer, score in scored:
        by_answer.setdefault(answer, []).append(score)
    fold = max if rule == "best" else math.fsum
    return {answer: fold(given) for answer, given in by_answer.items()}


def risk(votes: Mapping[str, float]) -> float:
    """How likely the leader of a head count is not the more frequent of the two leading answers.

    Both shares unknown and every ratio of them as likely before the count: I_(1/2)(a + 1, b + 1) with a votes for the
    first and b for the second (the Beta criterion of Adaptive-Consistency, arXiv 2305.11860).

    >>> round(risk({"7": 4, "8": 0}), 3), risk({"7": 3, "8": 3}), risk({})
    (0.031, 0.5, 1.0)
    """
    if not votes:
        return 1.0
    first, second = (int(count) for count in [*sorted(votes.values(), reverse=True), 0][:2])
    tosses = first + second + 1  # for whole numbers it is the chance of more than `first` heads among so many
    more = sum(math.comb(tosses, heads) for heads in range(first + 1, tosses + 1))
    return float(more / 2**tosses)


def choose(answers: Sequence[str | None], scores: Sequence[float | None], rule: str) -> Choice:
    """The solution to hand back: the best scored of those with the winning answer.

    Ties go to the answer, then to the solution, that comes first. Where no solution has an answer, the best
    scored of them all.

    >>> choose(["7", "8", "7"], [0.5, 0.9, 0.6], "weighted")
    Choice(index=2, votes={'7': 1.1, '8': 0.9})
    """
    votes = tally(answers, scores, rule)
    winner = max(votes, key=votes.__getitem__) if votes else None
    return Choice(_best([i for i, answer in enumerate(answers) if answer == winner], scores), votes)


def _best(indices: Sequence[int], scores: Sequence[float | None]) -> int | None:
    """The index with the highest score, the first of equals; unscored ones come after every scored one."""

    def rank(index: int) -> float:
        score = scores[index]
        return -math.inf if score is None else score

    return max(indices, key=rank, default=None)
