"""A judge chooses among the answers of a search by comparing two solutions at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Usage
from search.strategies.tournament import PairVerdict, TournamentRules, hold_tournament
from search.strategy import Candidate, SearchResult
from search.tree import SearchTree
from search.voting import choose_solution

BOTH_SCHEDULES = pytest.mark.parametrize("schedule", ["knockout", "round_robin"])


@dataclass
class ToyReferee:
    """Compares texts by `share(first, second)`; counts its calls."""

    share: Callable[[str, str], float | None]
    calls: list[tuple[str, str]] = field(default_factory=list)
    waits_s: float = 0.0

    async def compare_solutions(self, first: str, second: str) -> PairVerdict:
        await asyncio.sleep(self.waits_s)
        self.calls.append((first, second))
        return PairVerdict(self.share(first, second), Usage(scorer_calls=1, scored_tokens=7))


def prefer_larger(first: str, second: str) -> float:
    return float(int(first) > int(second))


def search_result(answers: list[str | None], scores: list[float | None] | None = None) -> SearchResult:
    """The result of a vote; the node of a solution is its place."""
    scores = scores or [None] * len(answers)
    choice = choose_solution(answers, scores, "tournament")
    candidates = tuple(
        Candidate(i, answer, score) for i, (answer, score) in enumerate(zip(answers, scores, strict=True))
    )
    return SearchResult(
        tree=SearchTree((1,)), best=choice.index, usage=Usage(tokens=5, seconds=1.0), votes=choice.votes,
        candidates=candidates,
    )  # fmt: skip


def hold(result: SearchResult, referee: ToyReferee, rules: TournamentRules, **changes: float) -> SearchResult:
    def read_text(node: int) -> str:
        return result.candidates[node].answer or "none"

    return asyncio.run(hold_tournament(result, referee, rules, read_text=read_text, **changes))


def answer_of(result: SearchResult) -> str | None:
    return None if result.best is None else result.candidates[result.best].answer


@given(
    st.lists(st.integers(0, 9).map(str) | st.none(), min_size=1, max_size=14),
    st.sampled_from(["knockout", "round_robin"]),
    st.integers(2, 30),
    st.booleans(),
)
def test_consistent_judge_finds_the_best_of_those_that_enter(
    answers: list[str | None], schedule: str, max_comparisons: int, both_orders: bool
) -> None:
    rules = TournamentRules(schedule=schedule, max_comparisons=max_comparisons, both_orders=both_orders)
    result, referee = search_result(answers), ToyReferee(prefer_larger)
    chosen = hold(result, referee, rules)
    # the entrants, from the rule as it is written: most votes first, then first in the list
    names = [answer for answer in dict.fromkeys(answers) if answer is not None]
    seeds = sorted(names, key=lambda name: -answers.count(name))
    matches = max_comparisons // (2 if both_orders else 1)
    fits = [m for m in range(2, 15) if (m - 1 if schedule == "knockout" else math.comb(m, 2)) <= matches]
    entrants = seeds[: max(fits)]
    assert answer_of(chosen) == max(entrants, key=int, default=None)
    assert len(referee.calls) <= max_comparisons
    assert {text for pair in referee.calls for text in pair} == (set(entrants) if len(entrants) > 1 else set())
    assert chosen.votes.keys() == result.votes.keys()
    if len(entrants) > 1:
        best = max(chosen.votes.values())
        assert [name for name, points in chosen.votes.items() if points == best] == [answer_of(chosen)]
        assert chosen.usage.scorer_calls == len(referee.calls)
        assert (chosen.usage.scored_tokens, chosen.usage.tokens) == (7 * len(referee.calls), 5)
        assert chosen.usage.seconds >= 1


@BOTH_SCHEDULES
@pytest.mark.parametrize("share", [1.0, 0.5, None])
def test_votes_decide_where_a_judge_prefers_a_place_or_says_nothing(schedule: str, share: float | None) -> None:
    result = search_result(["1", "2", "3", "2"])
    chosen = hold(result, ToyReferee(lambda *_: share), TournamentRules(schedule=schedule))
    assert answer_of(chosen) == "2"


def test_one_order_follows_a_judge_that_prefers_a_place() -> None:
    result = search_result(["1", "2", "2"])
    rules = TournamentRules(both_orders=False)
    assert answer_of(hold(result, ToyReferee(lambda *_: 0.0), rules)) == "1"


def test_points_of_a_round_robin_are_shares_of_matches() -> None:
    shares = {("1", "2"): 0.9, ("2", "1"): 0.3, ("1", "3"): 0.6, ("3", "1"): 0.6, ("2", "3"): 0.2, ("3", "2"): 0.8}
    chosen = hold(
        search_result(["1", "2", "3"]),
        ToyReferee(lambda first, second: shares[first, second]),
        TournamentRules(schedule="round_robin"),
    )
    assert chosen.votes == pytest.approx({"1": 0.8 + 0.5, "2": 0.2 + 0.2, "3": 0.5 + 0.8})
    assert answer_of(chosen) == "1"


def test_best_scored_solution_enters_for_its_answer() -> None:
    result = search_result(["1", "1", "2", "1"], [0.2, 0.9, None, 0.5])
    assert hold(result, ToyReferee(prefer_larger), TournamentRules()).best == 2
    assert hold(result, ToyReferee(lambda a, b: float(a < b)), TournamentRules()).best == 1


@pytest.mark.parametrize("answers", [[], [None, None], ["4", "4", None]])
def test_nothing_is_asked_where_there_is_no_choice(answers: list[str | None]) -> None:
    result, referee = search_result(answers), ToyReferee(prefer_larger)
    assert hold(result, referee, TournamentRules()) is result
    assert not referee.calls


@BOTH_SCHEDULES
def test_slow_comparison_decides_nothing(schedule: str) -> None:
    referee = ToyReferee(prefer_larger, waits_s=60)
    chosen = hold(search_result(["1", "2", "1"]), referee, TournamentRules(schedule=schedule), timeout=0.01)
    assert (answer_of(chosen), chosen.stop_reason) == ("1", "done")


@pytest.mark.parametrize("seconds_left", [-1.0, 0.0, 0.01])
def test_vote_decides_where_the_budget_ends(seconds_left: float) -> None:
    result = search_result(["1", "2", "1"])
    chosen = hold(result, ToyReferee(prefer_larger, waits_s=60), TournamentRules(), seconds_left=seconds_left)
    assert (answer_of(chosen), chosen.stop_reason, chosen.votes) == ("1", "budget", result.votes)


@pytest.mark.parametrize("share", [1.5, -0.1, math.nan])
def test_share_outside_its_range_is_an_error(share: float) -> None:
    with pytest.raises(ValueError, match="the judge gave a share outside"):
        hold(search_result(["1", "2"]), ToyReferee(lambda *_: share), TournamentRules())


def test_error_of_the_judge_ends_the_other_comparisons() -> None:
    ended = []

    class Broken(ToyReferee):
        async def compare_solutions(self, first: str, second: str) -> PairVerdict:
            if first == "1":
                raise ConnectionError("gone")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append(first)
                raise
            return PairVerdict(0.5)

    with pytest.raises(ConnectionError, match="gone"):
        hold(search_result(["1", "2", "3"]), Broken(prefer_larger), TournamentRules(schedule="round_robin"))
    assert sorted(ended) == ["2", "2", "3", "3"]
