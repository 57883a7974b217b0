"""Answers are found in texts and made canonical; any text is read in linear time."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason.grading.answer import boxed_content, canonical_answer, find_answer, find_letter
from tests.support.paths import DATA

LATEX = r"0 1 7 12 . , - + / ( ) { } $ % ^ _ = ! x C \ \frac \boxed{ \fbox{ \text{ \left \sqrt \! \, \$ \% ^\circ \pi"
OTHER = [" ", "\\ ", "####", "answer is", "\n", "\u2212", "\u00b0", "\ud800", "1,000", ", 234"]
PIECES = st.sampled_from([*LATEX.split(" "), *OTHER])
GARBAGE = st.lists(PIECES, max_size=30).map("".join)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\fbox{3}", "3"),
        (r"\framebox{204}", "204"),
        (r"\boxed {4}", "4"),
        (r"$\boxed 5$", "5"),
        (r"$\boxed5$", "5"),
        (r"\boxed{\boxed{6}}", "6"),
        (r"\boxed{x = \boxed{7}}", "7"),
        (r"the set { is open, \boxed{8}", "8"),
        (r"so \boxed{9 and later \boxed{10}", "10"),
        (r"\boxed{11} and \boxed{12", "11"),
        (r"\boxed{13}. I put it in \boxed{}", "13"),
        (r"twice escaped \\boxed{14}", "14"),
        (r"a new line \\\boxed{15}", "15"),
        (r"\boxed{16", None),
        (r"put it in \boxed and stop", None),
        (r"\boxed{ }", None),
        ("nothing", None),
        ("", None),
    ],
)
def test_last_balanced_box_is_the_answer(text: str, answer: str | None) -> None:
    assert boxed_content(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 18", "18"),
        ("9 * 2 = 18\n#### 1,234\n", "1,234"),
        ("#### 1\n#### 2", "2"),
        (r"\boxed{3} #### 4", "3"),
        ("The answer is 18.", "18"),
        ("Answer: $\\frac{1}{2}$", "\\frac{1}{2}"),
        ("**Answer:** 12", "12"),
        ("the answer is unknown", None),
        ("#### Step 3: the sum\nThe answer is 5", "5"),
        ("The answer is $18 per day, $2 each", "$18"),
        ("The answer is $ x + 1 $", "x + 1"),
        ("The answer is 15 cm", "15"),
        ("The answer is 15x^2+3", None),
        ("The answer is 12n - 1", None),
        ("The answer is $x^2 $.", "x^2"),
        ("The answer is 5.\n####", "5"),
        ("The answer is 5m/s.", "5"),
        ("The answer is 3h-long", "3"),
        ("The answer is 24.\nA^2", "24"),
        ("#### 18\n\nQuestion: Tom has 3. Answer: 3 apples", "18"),
        ("####", None),
        ("I think 5", None),
    ],
)
def test_answer_marks_are_read_where_there_is_no_box(text: str, answer: str | None) -> None:
    assert find_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (r"\boxed{C}", "C"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"\boxed{\textbf{D}}", "D"),
        (r"\boxed{A. 5 m/s}", "A"),
        (r"\boxed{(D) none of them}", "D"),
        (r"$\boxed C$", "C"),
        ("Answer: C", "C"),
        ("**Answer: (B)**", "B"),
        ("The correct answer is **D**.", "D"),
        ("The answer is $\\text{A}$", "A"),
        ("Option B is right", "B"),
        ("Let us see.\n\n(C)", "C"),
        ("**A**", "A"),
        ("The answer is Although", None),
        ("The answer is (C). That is the answer I get", "C"),
        ("Option I think is best: D", None),
        ("Option I is right", "I"),
        ("The answer is I because", "I"),
        ("A long story", None),
        (r"\boxed{42}", None),
        ("", None),
    ],
)
def test_choice_letters_are_found_in_the_forms_that_models_use(text: str, letter: str | None) -> None:
    assert find_letter(text) == letter


@pytest.mark.parametrize(
    "spellings",
    [
        [
            "33",
            "033",
            "$33$",
            "33.",
            "33.0",
            "+33",
            r"\(33\)",
            r"\boxed{33}",
            "**33**",
            r"33^\circ",
            "33 \u00b0",
            r"\text{33}",
        ],
        [
            "1000",
            "1,000",
            r"1{,}000",
            r"1,\!000",
            r"1\,000",
            "1~000",
            r"1 \text{ thousand}",
            "1 thousand",
            r"\$1,000.00",
            "$1,000",
            "1000.",
            r"1000 \text{ dollars}",
        ],
        ["0", "-0", "00", "0.0", ".0"],
        ["1/2", "0.5", ".50", r"\frac12", r"\frac 1 2", r"\dfrac{1}{2}", r"\tfrac{2}{4}", r"\frac{1}2", "2/4"],
        ["-1/2", "-0.5", r"-\frac{1}{2}", r"\frac{-1}{2}", "\u22121/2"],
        ["9/5", r"1\frac{4}{5}", r"1 \frac45", "1.8"],
        [r"(3,\frac{\pi}{2})", r"\left( 3, \frac{\pi}{2} \right)", r"(3,\dfrac{\pi}2)"],
        [r"3\sqrt{2}", r"3 \sqrt 2", r"3\sqrt2"],
        ["x^2+1", "x^{2} + 1", " x^2  + 1. ", r"x^2+1\,", r"x^2+1\;.", r"x^2+1\ "],
        ["(3,4)", r"\bigl(3,4\bigr)", r"\Big(3,\,4\Big)", r"\left(3,4\right)\,."],
        ["3", r"3 \text{ dozen}"],
        ["2500000", "2.5 million", r"2.5\text{ million}"],
        [r"(-\infty,2]\cup[3,\infty)", "(-\u221e, 2] \u222a [3, \u221e)"],
        [r"\sqrt{10}", "\u221a10", r"\sqrt{10}\,"],
        ["east", r"\text{East}", r"\mbox{ east }", "East."],
        ["C", "(C)", r"\text{(C)}", r"\mathrm{C}"],
        [r"x\in[-2,7]", r"x \in [-2,7]", r"x \in \left[-2, 7\right]"],
        [r"25\%", "25%"],
    ],
)
def test_canonical_answer_is_equal_for_all_spellings(spellings: list[str]) -> None:
    assert {canonical_answer(spelling) for spelling in spellings} == {spellings[0]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,2", "12"),
        ("1, 234", "1234"),
        ("1 1/2", "11/2"),
        ("(1,2)", "[1,2]"),
        ("-5", "5"),
        ("1/0", "0"),
        (r"5 \text{ or } 6", "56"),
        (r"5 \text{ million}", "5"),
        ("x=5", "y=5"),
        (r"52_8", "52"),
        ("x", "X"),
        (r"25\%", "25"),
        ("1.2.3", "123"),
    ],
)
def test_canonical_answers_of_different_answers_differ(one: str, other: str) -> None:
    assert canonical_answer(one) != canonical_answer(other)


@given(GARBAGE)
@settings(max_examples=300, deadline=None)
def test_answer_functions_accept_any_text_and_canonical_answer_is_idempotent(text: str) -> None:
    once = canonical_answer(text)
    assert canonical_answer(once) == once
    for find in (boxed_content, find_answer, find_letter):
        answer = find(text)
        assert answer is None or answer.strip()


@pytest.mark.parametrize(
    "unit",
    [
        "\\boxed{",
        "{",
        "}",
        "\\",
        "\\boxed{}",
        "\\boxed ",
        "answer is ",
        "answer:* ",
        "#",
        "$",
        "1",
        "1,",
        " ",
        "\\boxed{a{b}} ",
        "A\n",
        "(",
    ],
)
def test_answer_functions_read_a_megabyte_in_seconds(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    started = time.perf_counter()
    canonical_answer(text), find_answer(text), find_letter(text)
    assert time.perf_counter() - started < 20  # a quadratic scan would take hours


def test_canonical_answers_of_real_data_are_distinct_and_stable() -> None:
    """No gold answer of MATH-500 is lost, and no two different ones of a kind become one by accident."""
    if not (DATA / "math500.jsonl").exists():
        pytest.skip("no copy of MATH-500")
    with (DATA / "math500.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        assert canonical_answer(row["answer"])
        assert canonical_answer(canonical_answer(row["answer"])) == canonical_answer(row["answer"])
        assert canonical_answer(find_answer(row["solution"]) or "") == canonical_answer(row["answer"])
