"""Splitting a solution into its thought and the text behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason.thinking import ThinkingFormat

FORM = ThinkingFormat(opening="<think>", closing="</think>", forced_end="...</think>So: ")
WORDS = st.text(alphabet="ab \n\\{}", max_size=20)


@given(WORDS, WORDS, st.booleans())
def test_finished_thought_and_text_are_those_that_were_joined(thought: str, text: str, writes_opening: bool) -> None:
    solution = f"{'<think>' if writes_opening else ''}{thought}</think>{text}"
    assert FORM.split(solution, starts_inside=not writes_opening) == (thought, text, True)


@given(WORDS)
def test_unfinished_thought_has_no_text(thought: str) -> None:
    assert FORM.split(f"<think>{thought}", starts_inside=False) == (thought, "", False)
    assert FORM.split(thought, starts_inside=True) == (thought, "", False)


@given(WORDS)
def test_solution_without_tags_is_all_text(text: str) -> None:
    assert FORM.split(text, starts_inside=False) == ("", text, True)


def test_text_may_mention_the_tags() -> None:
    split = FORM.split("<think>a</think>The tags <think> and </think>.", starts_inside=False)
    assert split == ("a", "The tags <think> and </think>.", True)


def test_opening_tag_counts_at_the_beginning_alone() -> None:
    inside = "Count <b>. The tag <think> is there. So 4</think>It is 4"
    assert FORM.split(inside, starts_inside=True) == (inside.partition("</think>")[0], "It is 4", True)
    text = "The tag is <think>. So \\boxed{4}."
    assert FORM.split(text, starts_inside=False) == ("", text, True)
    assert FORM.split("\n <think>so", starts_inside=False) == ("so", "", False)


def test_prompt_decides_whether_a_solution_begins_inside_a_thought() -> None:
    assert FORM.is_open_after("earlier: <think>a</think>b. Now: <think>\n")
    assert not FORM.is_open_after("enable_thinking=false: <think>\n\n</think>\n\n")
    assert replace(FORM, opened_by_prompt=True).is_open_after("a conversation that the server renders")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"opening": " "}, "model.thinking.opening must be the text of a tag, got ' '"),
        ({"closing": None}, "model.thinking.closing must be the text of a tag, got None"),
        ({"closing": "<think>"}, "model.thinking.opening and closing must differ, got '<think>'"),
        ({"forced_end": "enough"}, "model.thinking.forced_end must hold the closing tag '</think>', got 'enough'"),
        ({"answer_tokens": -1}, "model.thinking.answer_tokens must be an int >= 0, got -1"),
        ({"think_tokens": 0}, "model.thinking.think_tokens must be an int >= 1 or null, got 0"),
        ({"interim_answers": "no"}, "model.thinking.interim_answers must be true or false, got 'no'"),
        ({"opened_by_prompt": 1}, "model.thinking.opened_by_prompt must be true or false, got 1"),
    ],
)
def test_wrong_knob_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        replace(FORM, **changes)  # type: ignore[arg-type]
    assert str(error.value) == message
