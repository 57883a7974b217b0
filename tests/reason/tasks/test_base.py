"""Subsets are the same in every run, ids are unique, and a misspelt knob fails before any data is read."""

from typing import Any

import pytest

from reason.grading.answer import find_letter
from reason.problem import Problem
from reason.tasks.base import Task


def sums(n: int) -> list[Problem]:
    return [Problem(id=f"sums/{i}", question=f"{i}+1?", answer=str(i + 1)) for i in range(n)]


def ids(task: Task) -> list[str]:
    return [problem.id for problem in task]


def test_offset_and_limit_take_a_slice_of_a_task() -> None:
    assert ids(Task("sums", sums(10), offset=3, limit=4)) == [f"sums/{i}" for i in range(3, 7)]
    assert len(Task("sums", sums(10), limit=99)) == 10


def test_windows_of_one_shuffle_are_disjoint_and_cover_the_task() -> None:
    windows = [ids(Task("sums", sums(10), shuffle_seed=1, offset=i, limit=5)) for i in (0, 5)]
    assert sorted(windows[0] + windows[1]) == sorted(ids(Task("sums", sums(10))))
    assert windows[0] != ids(Task("sums", sums(10), limit=5))


def test_task_shuffle_depends_on_its_seed_and_the_ids_only() -> None:
    """Neither added problems nor another order of the file reorders the others."""
    few, many = (ids(Task("sums", sums(n), shuffle_seed=7)) for n in (10, 20))
    assert [i for i in many if i in few] == few
    assert ids(Task("sums", sums(10)[::-1], shuffle_seed=7)) == few
    assert ids(Task("sums", sums(10), shuffle_seed=8)) != few


@pytest.mark.parametrize(
    "knobs",
    [
        {"limit": 0},
        {"limit": "3"},
        {"limit": True},
        {"offset": -1},
        {"offset": 1.5},
        {"shuffle_seed": "x"},
        {"offset": 10},
    ],
)
def test_wrong_task_knob_is_named(knobs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"task\.{next(iter(knobs))}"):
        Task("sums", sums(10), **knobs)


def test_problems_with_equal_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="'sums/0' occurs more than once"):
        Task("sums", sums(2) + sums(1))


def test_task_grades_distinguish_wrong_no_answer_and_no_gold() -> None:
    task = Task("sums", [*sums(1), Problem(id="open", question="?")])
    solutions = [r"\boxed{1}", r"\boxed{01}", r"\boxed{2}", "I give up"]
    assert [str(task.grade_text(task[0], text)) for text in solutions] == ["right", "right", "wrong", "no_answer"]
    assert str(task.grade_text(task[1], r"\boxed{1}")) == "ungraded"
    assert [str(task.grade(task[0], a)) for a in ("1", r"so \boxed{1}", "2", None)] == [
        "right",
        "right",
        "wrong",
        "no_answer",
    ]


def test_task_may_override_answer_extraction() -> None:
    task = Task("letters", [Problem(id="0", question="?", answer="B")], find=find_letter)
    assert task.extract_answer("The answer is (B).") == "B"
    assert task.extract_answer(r"\boxed{42}") is None
    assert str(task.grade(task[0], "B")) == str(task.grade(task[0], "(B)")) == "right"
