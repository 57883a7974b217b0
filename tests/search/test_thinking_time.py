"""A search with a limit of seconds ends thoughts while there is time for their answers; no real time passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import SamplingParams, Tokens
from search.step_rules.fixed_length import FixedLengthSteps
from search.strategy import Budget, SearchResult
from search.thinking_time import ThinkingTime
from tests.support.endless_thought import END, limits, think_for_ever
from tests.support.scripted_thinker import CLOSING
from tests.support.searches import search_classes
from tests.support.toy_search import ROOT
from tests.support.virtual_time import TimedEngine, run_in_virtual_time

SECONDS = 20.0
LONG = SamplingParams(max_tokens=100_000)


def search(
    name: str, engine: TimedEngine, *, n: int = 4, seconds: float | None = SECONDS, **fields: Any
) -> SearchResult:
    given = {"step_rule": FixedLengthSteps(tokens=64), "thought": limits(None, answer_tokens=40)} | fields
    strategy = search_classes()[name](n=n, sampling=LONG)
    return run_in_virtual_time(strategy, engine=engine, budget=Budget(seconds=seconds), **given)


def read_thoughts(result: SearchResult) -> list[str]:
    return [result.tree.path_text(candidate.node).partition(END.decode())[0] for candidate in result.candidates]


@pytest.mark.parametrize("rate", [10.0, 30.0])
@pytest.mark.parametrize("name", search_classes())
def test_a_budget_of_seconds_that_nears_its_end_has_an_answer_in_every_search(name: str, rate: float) -> None:
    result = search(name, TimedEngine(think_for_ever, rate))
    answers = [candidate.answer for candidate in result.candidates]
    assert "7" in answers
    assert answers.count("7") >= len(answers) / 2
    assert result.usage.seconds <= SECONDS
    assert result.stop_reason == "budget"


def test_without_a_budget_of_thoughts_the_end_of_the_time_leaves_no_answer() -> None:
    result = search("best_of_n", TimedEngine(think_for_ever, 30.0), thought=None)
    assert {candidate.answer for candidate in result.candidates} == {None}
    assert result.usage.seconds == SECONDS


@pytest.mark.parametrize("rate", [4.0, 10.0, 30.0, 400.0])
def test_thought_has_all_of_the_time_but_for_the_reserve(rate: float) -> None:
    """Twice the time of an answer, at least a twentieth of the limit, at most a quarter of it."""
    reserve = min(max(2 * 40 / rate, SECONDS / 20), SECONDS / 4)
    for thought in read_thoughts(search("best_of_n", TimedEngine(think_for_ever, rate))):
        assert rate * (SECONDS - reserve) - 2 <= len(thought) <= rate * (SECONDS - reserve) + 1


def test_thought_of_a_server_that_replies_at_the_end_is_not_lost() -> None:
    result = search("best_of_n", TimedEngine(think_for_ever, 30.0, loses_text=True))
    assert [candidate.answer for candidate in result.candidates] == ["7"] * 4
    assert all(len(thought) >= 0.8 * 30 * SECONDS for thought in read_thoughts(result))


def test_branch_that_a_server_lost_while_others_were_faster_answers_without_a_thought() -> None:
    result = search("best_of_n", TimedEngine(think_for_ever, 64.0, slow_rate=3.0, loses_text=True), n=8)
    assert [candidate.answer for candidate in result.candidates] == ["7"] * 8
    first, *others = read_thoughts(result)
    assert not first
    assert min(map(len, others)) >= 0.7 * 64 * SECONDS


def test_step_that_did_not_begin_in_time_does_not_end_the_others() -> None:
    result = search("rebase", TimedEngine(think_for_ever, 4.0, capacity=2))
    assert [candidate.answer for candidate in result.candidates] == ["7", "7"]


def test_solution_that_did_not_begin_in_time_takes_none_from_the_answers_of_others() -> None:
    engine = TimedEngine(think_for_ever, 4.0, capacity=1)  # the first part takes all of the time
    result = search("best_of_n", engine)
    assert [candidate.answer for candidate in result.candidates] == ["7"]
    assert len(read_thoughts(result)[0]) >= 4 * SECONDS / 2


def test_branches_that_take_turns_have_a_slower_pace_and_all_answer() -> None:
    result = search("best_of_n", TimedEngine(think_for_ever, 100.0, capacity=2), n=8)
    assert [candidate.answer for candidate in result.candidates] == ["7"] * 8
    assert all(len(thought) >= 64 for thought in read_thoughts(result))


def end_soon(seed: int, prefix: Tokens) -> str:
    text = f"{'so ' * (5 + seed % 9)}{CLOSING}It is \\boxed{{3}}."
    return text[len(prefix) - len(ROOT) :]


@pytest.mark.parametrize("name", ["best_of_n", "rebase", "treepo"])
def test_thoughts_that_end_in_time_are_left_alone(name: str) -> None:
    """They are written in parts, so only the number of requests differs."""
    with_limit, without = (search(name, TimedEngine(end_soon, 30.0), seconds=seconds) for seconds in (SECONDS, None))
    assert with_limit.tree.to_dict() == without.tree.to_dict()
    assert with_limit.stop_reason == without.stop_reason == "done"
    assert replace(with_limit.usage, calls=0, prompt_tokens=0) == replace(without.usage, calls=0, prompt_tokens=0)


def test_thought_that_has_to_wait_goes_on_until_the_time_is_up() -> None:
    def write(seed: int, prefix: Tokens) -> str:
        text = bytes(prefix).decode()[len(ROOT) :]
        return (
            ""
            if "boxed" in text
            else f"{'so ' * 20}{CLOSING}It is \\boxed{{3}}."
            if CLOSING not in text
            else "\\boxed{7}."
        )

    thought = replace(limits(None, answer_tokens=40), closing=CLOSING, waits=1000, wait=tuple(b" Wait, "))
    result = search("best_of_n", TimedEngine(write, 30.0), thought=thought)
    assert {candidate.answer for candidate in result.candidates} <= {"3", "7"}
    assert all(len(text) >= 0.7 * 30 * SECONDS for text in read_thoughts(result))
    assert all("Wait" in text for text in read_thoughts(result))


def test_no_time_is_kept_where_no_room_is_kept_for_answers() -> None:
    thought = replace(limits(None), answer_tokens=0)
    result = search("best_of_n", TimedEngine(think_for_ever, 30.0), thought=thought)
    assert {candidate.answer for candidate in result.candidates} == {None}


@given(
    st.floats(0.01, 1e4),
    st.lists(st.tuples(st.integers(0, 500), st.floats(0, 100)), max_size=5),
    st.lists(st.floats(0, 100), max_size=3),
    st.integers(1, 5000),
)
def test_reserve_is_between_a_twentieth_and_a_quarter_and_grows_with_the_answer(
    seconds: float, parts: list[tuple[int, float]], scorings: list[float], answer_tokens: int
) -> None:
    time = ThinkingTime(seconds, deadline=lambda: seconds, clock=lambda: 0.0)
    for num_tokens, part_s in parts:
        time.add_generation(num_tokens, part_s)
    for scoring_s in scorings:
        time.add_scoring(scoring_s)
    reserve, longer = (seconds - time.find_deadline(count) for count in (answer_tokens, 2 * answer_tokens))
    assert seconds * 0.049 <= reserve <= seconds * 0.251
    assert longer >= reserve
    assert time.count_affordable(answer_tokens) >= 1
