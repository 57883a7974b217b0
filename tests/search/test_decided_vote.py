"""A decided vote cancels what is still being written; what decides is a beginning of the solutions, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest
from search.level_search import LevelSearch
from search.strategies.self_consistency import SelfConsistency
from search.strategy import Budget, SearchResult
from search.voting import is_majority_certain, tally_votes
from tests.support.searches import search_classes
from tests.support.toy_search import ToyEngine, UnsteadyEngine, run_search


class AnswersInOrder(ToyEngine):
    """The i-th request gets the i-th answer; from `stuck` on they never end. `cancelled` counts those cancelled."""

    def __init__(self, answers: Sequence[str], stuck: int = 10**9, delays: Sequence[int] = (0,)) -> None:
        super().__init__(lambda seed, prefix: "")
        self._answers, self._stuck, self._delays = answers, stuck, delays
        self.cancelled = 0

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        number = len(self.requests)
        self.requests += requests
        try:
            if number >= self._stuck:
                await asyncio.Event().wait()
            for _ in range(self._delays[number % len(self._delays)]):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        text = f"\\boxed{{{self._answers[number]}}}"
        return [ToyEngine(lambda *_: text).continue_prefix(request) for request in requests]


def sample(engine: ToyEngine, n: int, stop_error: float | None, **changes: Any) -> SearchResult:
    return run_search(SelfConsistency(n=n, stop_error=stop_error), engine=engine, scorer=None, **changes)


def test_decided_vote_does_not_wait_for_the_rest_of_its_wave() -> None:
    engine = AnswersInOrder("7777", stuck=3)
    result = sample(engine, 16, 0.1)
    assert (result.stop_reason, [c.answer for c in result.candidates]) == ("decided", ["7", "7", "7"])
    assert engine.cancelled == result.usage.cancelled == 1
    assert result.usage.calls == len(engine.requests) == 4


def test_sampling_that_is_not_to_stop_takes_all_solutions() -> None:
    result = sample(AnswersInOrder("7" * 16), 16, None)
    assert (result.stop_reason, len(result.candidates), result.usage.cancelled) == ("done", 16, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.text("123", min_size=1, max_size=24),
    st.lists(st.integers(0, 9), min_size=1, max_size=7),
    st.sampled_from([0.0, 0.05, 0.2]),
    st.none() | st.integers(10, 300),
)
def test_decision_is_the_same_in_whatever_order_generations_end(
    answers: str, delays: list[int], stop_error: float, tokens: int | None
) -> None:
    budget = Budget(tokens=tokens)
    results = [
        sample(AnswersInOrder(answers, delays=order), len(answers), stop_error, budget=budget)
        for order in ([0], delays, delays[::-1])
    ]
    assert len({str(result.tree.to_dict()) for result in results}) == 1
    assert len({str((replace(r.usage, seconds=0.0), r.votes, r.best, r.stop_reason)) for r in results}) == 1


@settings(max_examples=80, deadline=None)
@given(st.text("123", min_size=1, max_size=24))
def test_vote_that_stops_only_when_it_is_certain_chooses_the_answer_of_all(answers: str) -> None:
    early, whole = (sample(AnswersInOrder(answers), len(answers), error) for error in (0.0, None))
    assert max(early.votes, key=lambda a: early.votes[a]) == max(whole.votes, key=lambda a: whole.votes[a])
    assert early.candidates[0].answer == whole.candidates[0].answer


@given(st.text("123", min_size=1, max_size=9), st.integers(0, 4))
def test_certain_majority_is_one_that_no_further_votes_change(answers: str, num_remaining: int) -> None:
    def winner(more: str) -> str:
        votes = tally_votes([*answers, *more], [None] * (len(answers) + len(more)), "majority")
        return max(votes, key=lambda answer: votes[answer])

    votes = tally_votes(list(answers), [None] * len(answers), "majority")
    outcomes = {winner(rival * num_remaining) for rival in "1234"}
    assert is_majority_certain(votes, num_remaining) is (outcomes == {winner("")})


@pytest.mark.parametrize("name", search_classes(LevelSearch))
@pytest.mark.parametrize("keep_width", [False, True])
def test_level_that_decides_the_vote_is_not_waited_for(name: str, keep_width: bool) -> None:
    engine = AnswersInOrder("7" * 8, stuck=6)
    depth = 1 if keep_width else None
    strategy = search_classes()[name](n=8, early_stop=1, select="majority", keep_width=keep_width, depth=depth)
    result = run_search(strategy, engine=engine)
    assert (result.stop_reason, result.votes) == ("decided", {"7": 4.0})
    assert (result.usage.cancelled, engine.cancelled) == (4, 2)  # two were there already


@pytest.mark.parametrize("name", search_classes(LevelSearch))
@pytest.mark.parametrize("seed", range(8))
def test_level_is_decided_by_the_same_branches_whichever_are_faster(name: str, seed: int) -> None:
    strategy = search_classes()[name](n=16, early_stop=0.5, select="majority")
    results = [run_search(strategy, engine=UnsteadyEngine(order), seed=seed) for order in range(4)]
    assert len({str((r.tree.to_dict(), r.votes, r.best, r.stop_reason)) for r in results}) == 1
    assert len({replace(r.usage, seconds=0.0, scored_tokens=0) for r in results}) == 1


@pytest.mark.parametrize("seed", range(6))
def test_engine_error_behind_the_decision_does_not_matter_and_before_it_ends_the_search(seed: int) -> None:
    class Failing(UnsteadyEngine):
        def __init__(self, fails: int) -> None:
            super().__init__(seed, lambda *_: "\\boxed{7}")
            self._fails, self._number = fails, 0

        async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            number, self._number = self._number, self._number + 1
            generations = await super().generate(requests)
            if number == self._fails:
                raise RuntimeError("lost")
            return generations

    assert sample(Failing(fails=3), 16, 0.1).stop_reason == "decided"
    with pytest.raises(RuntimeError, match="lost"):
        sample(Failing(fails=1), 16, 0.1)
