"""Chooses among the answers of a search by a judge that compares two solutions at a time (`select=tournament`).

Pairwise ranking by a model, with both orders asked against its bias for a position: arXiv 2306.05685, section 3.4;
knockouts among sampled solutions: arXiv 2501.13007. Entering one solution per answer, and breaking ties by votes, is
ours.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Protocol

from decoding.core import Usage
from decoding.validation import require_choice, require_count, require_switch
from search.strategy import Candidate, SearchResult

log = logging.getLogger(__name__)

SCHEDULES = ("knockout", "round_robin")


@dataclass(frozen=True)
class PairVerdict:
    """How probable it is that the first of two solutions is the better one, in [0, 1]; None: the judge said nothing."""

    share: float | None
    usage: Usage = field(default_factory=Usage)


class SolutionReferee(Protocol):
    """Compares solutions of one problem, whose question is bound."""

    async def compare_solutions(self, first: str, second: str) -> PairVerdict:
        """Compares two texts in this order; costs one call of the judge, or as many as it takes samples."""
        ...


@dataclass(frozen=True, kw_only=True)
class TournamentRules:
    """Which solutions are compared.

    schedule         `knockout`: the loser of a match is out, and the best seed meets the worst; `round_robin`: each
                     meets each, and the sum of the shares counts
    max_comparisons  limit of all comparisons of one problem; of more answers than it affords, those with the most votes
                     enter
    both_orders      whether a match is two comparisons, with either solution first

    Raises: ValueError naming the knob.
    """

    schedule: str = "knockout"
    max_comparisons: int = 16
    both_orders: bool = True

    def __post_init__(self) -> None:
        require_choice("schedule", self.schedule, SCHEDULES)
        require_switch("both_orders", self.both_orders)
        require_count("max_comparisons", self.max_comparisons, at_least=self.comparisons_per_match)

    @property
    def comparisons_per_match(self) -> int:
        """Comparisons of two solutions with each other."""
        return 2 if self.both_orders else 1

    @property
    def max_entrants(self) -> int:
        """Solutions that may enter without more comparisons than the limit.

        >>> [TournamentRules(schedule=schedule, max_comparisons=12).max_entrants for schedule in SCHEDULES]
        [7, 4]
        """
        num_matches = self.max_comparisons // self.comparisons_per_match
        if self.schedule == "knockout":
            return num_matches + 1
        entrants = 2
        while entrants * (entrants + 1) // 2 <= num_matches:
            entrants += 1
        return entrants


async def hold_tournament(
    result: SearchResult,
    referee: SolutionReferee,
    rules: TournamentRules,
    *,
    read_text: Callable[[int], str],
    timeout: float | None = None,
    seconds_left: float | None = None,
) -> SearchResult:
    """Returns the result with the solution that wins, and the points of each answer as its votes.

    One solution enters for each answer: the one with the highest score, or the first. Seeds are the numbers of votes.
    A point is a round that an answer survives, or in a round robin a share of a match; answers that did not enter have
    none. A match that the judge does not decide goes to the answer with more votes, then to the first.

    read_text     what the judge sees of the solution that ends in a node
    timeout       seconds that one comparison may take; then it decides nothing
    seconds_left  of the problem's budget; where they run out, the vote decides

    Raises: what the referee raises.
    """
    entrants = _find_entrants(result)[: rules.max_entrants]
    if len(entrants) < 2:
        return result
    matches, begin = _MatchBook(referee, rules, read_text, timeout), time.monotonic()

    def add_usage() -> Usage:
        return result.usage + replace(matches.usage, seconds=time.monotonic() - begin)

    play = _play_knockout if rules.schedule == "knockout" else _play_round_robin
    try:
        if seconds_left is not None and seconds_left <= 0:
            raise TimeoutError
        async with asyncio.timeout(seconds_left):
            points = await play(entrants, matches)
    except TimeoutError:
        log.warning("the budget ended before the tournament did; the vote decides")
        return replace(result, usage=add_usage(), stop_reason="budget")
    winner = entrants[points.index(max(points))]  # the better seed of equals
    votes = dict.fromkeys(result.votes, 0.0) | {str(c.answer): p for c, p in zip(entrants, points, strict=True)}
    return replace(result, best=winner.node, votes=votes, usage=add_usage())


def _find_entrants(result: SearchResult) -> list[Candidate]:
    """Returns one solution for each answer that has votes, the best seed first."""
    by_answer: dict[str, list[Candidate]] = {answer: [] for answer in result.votes}
    for candidate in result.candidates:
        if candidate.answer in by_answer:
            by_answer[candidate.answer].append(candidate)
    ranked = sorted((answer for answer in by_answer if by_answer[answer]), key=lambda a: -result.votes[a])  # stable
    return [max(by_answer[answer], key=lambda c: -1.0 if c.score is None else c.score) for answer in ranked]


@dataclass
class _MatchBook:
    """Holds matches and adds up what they cost."""

    referee: SolutionReferee
    rules: TournamentRules
    read_text: Callable[[int], str]
    timeout: float | None
    usage: Usage = field(default_factory=Usage)

    async def play(self, pairs: Sequence[tuple[Candidate, Candidate]]) -> list[float]:
        """Returns the share of the first of each pair, 0.5 where nothing decides; all are compared at a time."""
        orders = [*pairs, *((b, a) for a, b in pairs)] if self.rules.both_orders else [*pairs]
        tasks = [asyncio.create_task(self._compare(a, b)) for a, b in orders]
        try:
            shares = await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # after an error `gather` leaves the others running
                task.cancel()
        turned = shares[len(pairs) :] or [None] * len(pairs)
        return [_join_orders(share, other) for share, other in zip(shares, turned, strict=False)]

    async def _compare(self, first: Candidate, second: Candidate) -> float | None:
        try:
            async with asyncio.timeout(self.timeout):
                compared = await self.referee.compare_solutions(self.read_text(first.node), self.read_text(second.node))
        except TimeoutError:
            log.warning("no comparison after %s s; it decides nothing", self.timeout)
            return None
        self.usage += compared.usage
        if compared.share is not None and not 0 <= compared.share <= 1:  # also for nan
            raise ValueError(f"the judge gave a share outside [0, 1]: {compared.share}")
        return compared.share


def _join_orders(share: float | None, turned: float | None) -> float:
    """Returns the mean share of the first over both orders, of which `turned` had it second.

    >>> _join_orders(0.75, 0.75), _join_orders(1.0, 0.0), _join_orders(None, 0.25), _join_orders(None, None)
    (0.5, 1.0, 0.75, 0.5)
    """
    known = [value for value in (share, None if turned is None else 1 - turned) if value is not None]
    return sum(known) / len(known) if known else 0.5


async def _play_knockout(entrants: Sequence[Candidate], matches: _MatchBook) -> list[float]:
    """Returns the number of rounds that each survives; the winner alone survives all."""
    points, left = [0.0] * len(entrants), list(range(len(entrants)))
    while len(left) > 1:
        half = len(left) // 2
        pairs = [(left[i], left[-1 - i]) for i in range(half)]
        shares = await matches.play([(entrants[a], entrants[b]) for a, b in pairs])
        losers = {b if share >= 0.5 else a for (a, b), share in zip(pairs, shares, strict=True)}
        left = [i for i in left if i not in losers]
        for i in left:
            points[i] += 1
    return points


async def _play_round_robin(entrants: Sequence[Candidate], matches: _MatchBook) -> list[float]:
    """Returns the sum of the shares of each over its matches with all others."""
    points, pairs = [0.0] * len(entrants), list(combinations(range(len(entrants)), 2))
    shares = await matches.play([(entrants[a], entrants[b]) for a, b in pairs])
    for (a, b), share in zip(pairs, shares, strict=True):
        points[a] += share
        points[b] += 1 - share
    return points
