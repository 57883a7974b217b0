"""Synthetic problems: exact solutions are correct, injected errors are located, splits are disjoint."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from reason.tasks.synthetic import Synthetic
from reason.tasks.synthetic.draw import distinct_exercises, split_of
from reason.tasks.synthetic.exercise import DELIMITER, ExactWriter, Exercise
from reason.tasks.synthetic.families import FAMILIES
from reason.tasks.synthetic.step_checker import check_solution
from tests.support.error_injection import ErrorWriter, wrong_number

EVEN = dict.fromkeys(FAMILIES, 1.0)


def exercises(count: int, seed: int = 0) -> list[Exercise]:
    return list(islice(distinct_exercises(seed, "train", weights=EVEN), count))


@pytest.mark.parametrize("family", FAMILIES)
def test_exact_solution_is_always_correct(family: str) -> None:
    rng = random.Random(1)
    for difficulty in FAMILIES[family].difficulties:
        for _ in range(20):
            exercise = FAMILIES[family].generate(rng, difficulty)
            text = exercise.write_solution(ExactWriter(), rng)
            result = check_solution(exercise, text)
            assert result.is_solved
            assert result.first_error is None
            assert all(result.correct_steps)
            assert 0 <= exercise.answer <= 999
            assert text.endswith(f"\\boxed{{{exercise.answer}}}.")


def test_injected_error_is_found_at_its_number() -> None:
    """Everything before `first_error` is what an exact solution may contain; the rest never counts as correct."""
    rng = random.Random(2)
    num_found = 0
    for exercise in exercises(200):
        if exercise.family == "countdown":  # there another number may be another correct way
            continue
        exact_writer = ExactWriter()
        order = rng.random()
        gold = exercise.write_solution(exact_writer, random.Random(order))
        text = exercise.write_solution(ErrorWriter(rng.randrange(exact_writer.num_written), rng), random.Random(order))
        result = check_solution(exercise, text)
        if result.first_error is None:  # its step could not be completed and was not written
            assert gold.startswith(text)
            assert text != gold
            continue
        assert text[: result.first_error] == gold[: result.first_error]
        assert not result.is_solved
        assert result.correct_steps == sorted(result.correct_steps, reverse=True)
        num_found += 1
    assert num_found > 100


def test_answer_without_steps_is_not_a_solution() -> None:
    for exercise in exercises(30):
        assert not check_solution(exercise, f"The answer is \\boxed{{{exercise.answer}}}.").is_solved


def test_text_after_the_answer_is_an_error() -> None:
    for exercise in exercises(30):
        text = exercise.write_solution(ExactWriter(), random.Random(0))
        assert not check_solution(exercise, text + DELIMITER + text).is_solved


def test_countdown_accepts_every_correct_derivation_and_no_dead_end() -> None:
    rng = random.Random(3)
    exercise = next(e for e in exercises(400) if e.family == "countdown" and e.difficulty == 1)
    outcomes = set()
    for _ in range(2000):
        left, steps = list(exercise.numbers), []  # type: ignore[attr-defined]
        while len(left) > 1:
            x, y = rng.sample(left, 2)
            sign = rng.choice("+-*")
            value = x + y if sign == "+" else x - y if sign == "-" else x * y
            left.remove(x)
            left.remove(y)
            left.append(value)
            steps.append(f"{x}{sign}{y}={value}, leaving {' '.join(map(str, left))}.")
        reached = left == [exercise.answer]
        text = DELIMITER.join([*steps, f"The answer is \\boxed{{{exercise.answer}}}."])
        if all(n >= 0 for n in left) and "--" not in text and "=-" not in text:
            assert check_solution(exercise, text).is_solved == reached
            outcomes.add(reached)
    assert outcomes == {True, False}


def test_synthetic_splits_share_no_question() -> None:
    train = {e.question for e in islice(distinct_exercises(0, "train", weights=EVEN), 500)}
    held = {e.question for e in islice(distinct_exercises(0, "heldout", weights=EVEN), 500)}
    assert not train & held
    assert {split_of(q) for q in held} == {"heldout"}


def test_synthetic_problems_repeat_for_a_seed_and_are_distinct() -> None:
    first, again = Synthetic(size=50, seed=4), Synthetic(size=50, seed=4)
    assert list(first) == list(again)
    assert len({p.question for p in first}) == 50
    assert list(first) != list(Synthetic(size=50, seed=5))


def test_larger_synthetic_set_begins_with_the_smaller_one() -> None:
    assert list(Synthetic(size=40))[:10] == list(Synthetic(size=10))


def test_difficulty_is_the_number_of_steps() -> None:
    for difficulty in (1, 3):
        for problem in Synthetic(families=["recurrence", "digit_sums"], difficulty=difficulty, size=10):
            assert problem.meta["difficulty"] == difficulty


def test_countdown_is_graded_by_its_steps() -> None:
    task = Synthetic(families=["countdown"], size=5)
    for problem in task:
        assert str(task.grade_text(problem, f"The answer is \\boxed{{{problem.answer}}}.")) == "wrong"
        assert str(task.grade_text(problem, "no idea")) == "no_answer"


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"families": ["word"]}, "task.families must be from words"),
        ({"families": []}, "task.families"),
        ({"split": "test"}, "task.split must be one of train, heldout"),
        ({"size": 0}, "task.size"),
        ({"difficulty": [3, 1]}, "task.difficulty"),
        ({"difficulty": 0}, "task.difficulty"),
    ],
)
def test_wrong_synthetic_knob_is_named_with_the_choices(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Synthetic(**knobs)  # type: ignore[arg-type]


def test_wrong_number_differs_from_the_number() -> None:
    rng = random.Random(0)
    assert all(wrong_number(n, rng) not in (n, -1) for n in range(200))
