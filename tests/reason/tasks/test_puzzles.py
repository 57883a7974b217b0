"""Puzzles and the thoughts about them: every line is right, planted slips are found, the parts have their shares."""

from __future__ import annotations

import random
from itertools import islice, pairwise

import pytest

from reason.tasks.puzzles import forms
from reason.tasks.puzzles.checker import Verdict, check_thought
from reason.tasks.puzzles.families import PUZZLES
from reason.tasks.puzzles.puzzle import Puzzle, trial_range
from reason.tasks.puzzles.thought import GIVE_UP, SLIP_IS_THERE, ThoughtStyle, write_thought
from reason.tasks.synthetic.draw import distinct_exercises, split_of
from reason.tasks.synthetic.exercise import ExactWriter

NO_SLIPS = ThoughtStyle(slip=0.0)
ALWAYS_SLIPS = ThoughtStyle(slip=1.0, re_verify=0.0, check=0.0)


def puzzles(family: str, count: int, seed: int = 0) -> list[Puzzle]:
    rng = random.Random(seed)
    difficulties = PUZZLES[family].difficulties
    drawn = [PUZZLES[family].generate(rng, rng.choice(difficulties)) for _ in range(count)]
    assert all(isinstance(puzzle, Puzzle) for puzzle in drawn)
    return drawn  # type: ignore[return-value]


def solve_directly(puzzle: Puzzle) -> int:
    """The answer, from the question's numbers by another way than the search's."""
    for number in range(1000):
        if fulfils(puzzle, number):
            return number
    raise AssertionError(puzzle.question)


def fulfils(puzzle: Puzzle, number: int) -> bool:
    given = vars(puzzle)
    if puzzle.family == "congruences":
        return bool(number * given["factor"] % given["modulus"] == given["residue"])
    rests = (number % given["small"], number % given["large"])
    return number > 0 and rests == (given["small_remainder"], given["large_remainder"])


@pytest.mark.parametrize("family", PUZZLES)
def test_first_trial_that_succeeds_is_the_smallest_solution(family: str) -> None:
    for puzzle in puzzles(family, 150):
        assert puzzle.answer == solve_directly(puzzle)
        assert len(puzzle.trials) in trial_range(puzzle.difficulty)
        assert [trial.is_hit for trial in puzzle.trials].count(True) == 1


@pytest.mark.parametrize("family", PUZZLES)
def test_every_line_of_a_thought_without_slips_is_right(family: str) -> None:
    rng = random.Random(1)
    for puzzle in puzzles(family, 150):
        text = write_thought(puzzle, rng, style=NO_SLIPS).text
        check = check_thought(puzzle, text)
        assert {line.verdict for line in check.lines} == {Verdict.RIGHT}, text
        assert check.first_right_statement is not None
        assert text.endswith(f"\n{forms.CLOSING}\n\nThe answer is \\boxed{{{puzzle.answer}}}.")


@pytest.mark.parametrize("family", PUZZLES)
def test_planted_slip_is_found_by_the_checker_and_repaired_by_the_thought(family: str) -> None:
    rng = random.Random(2)
    num_planted = 0
    for puzzle in puzzles(family, 150):
        thought = write_thought(puzzle, rng, style=ALWAYS_SLIPS)
        check = check_thought(puzzle, thought.text)
        planted = [at.start for at in thought.slips]
        assert len(check.slips) == len(planted), thought.text
        for line, at in zip(check.slips, planted, strict=True):
            assert line.end - len(line.text) - 1 <= at < line.end
        assert not check.lasting_slips, thought.text
        assert thought.text.endswith(f"\\boxed{{{puzzle.answer}}}.")
        num_planted += len(planted)
    assert num_planted > 75


@pytest.mark.parametrize("family", PUZZLES)
def test_wrong_digit_in_a_trial_is_a_slip(family: str) -> None:
    rng = random.Random(3)
    for puzzle in puzzles(family, 40):
        thought = write_thought(puzzle, rng, style=ThoughtStyle(slip=0.0, dead_end=0.0, re_verify=0.0, check=0.0))
        trial = rng.choice(puzzle.trials)
        end = thought.text.index(trial.line) + len(trial.line)
        last_digit = max(i for i in range(end) if thought.text[i].isdigit())
        changed = str((int(thought.text[last_digit]) + rng.randint(1, 9)) % 10)
        wrong = thought.text[:last_digit] + changed + thought.text[last_digit + 1 :]
        slips = check_thought(puzzle, wrong).slips
        assert slips
        assert slips[0].end > last_digit


@pytest.mark.parametrize("family", PUZZLES)
def test_thought_goes_on_from_notes(family: str) -> None:
    rng = random.Random(4)
    for puzzle in puzzles(family, 60):
        if len(puzzle.trials) > 2:
            trial = puzzle.trials[rng.randrange(len(puzzle.trials) - 1)]
            thought = write_thought(puzzle, rng, style=NO_SLIPS, start=trial.state)
            check = check_thought(puzzle, thought.text, start=trial.state)
            assert {line.verdict for line in check.lines} == {Verdict.RIGHT}
            assert puzzle.trials[0].line not in thought.text


def test_thoughts_have_dead_ends_checks_that_find_slips_and_needless_checks() -> None:
    rng = random.Random(5)
    texts, shares = [], []
    for puzzle in (puzzle for family in PUZZLES for puzzle in puzzles(family, 100)):
        text = write_thought(puzzle, rng).text
        texts.append(text)
        first = check_thought(puzzle, text).first_right_statement
        assert first is not None
        shares.append(1 - first / len(text))
    assert 0.15 < sum(GIVE_UP in text for text in texts) / len(texts) < 0.35
    assert 0.1 < sum(SLIP_IS_THERE in text for text in texts) / len(texts) < 0.35
    assert 0.3 < sum(shares) / len(shares) < 0.6


def test_marks_know_what_a_thought_has_reached() -> None:
    rng = random.Random(6)
    for puzzle in (puzzle for family in PUZZLES for puzzle in puzzles(family, 40)):
        thought = write_thought(puzzle, rng, style=NO_SLIPS)
        stated = check_thought(puzzle, thought.text).first_right_statement
        assert stated is not None
        assert thought.mark_at(0) is None
        for mark in thought.marks:
            assert (mark.answer == puzzle.answer) == (mark.end >= stated - len("\n\nSo the number = 999.\n"))
        assert all(earlier.end <= later.end for earlier, later in pairwise(thought.marks))


def test_notes_of_a_search_that_goes_on_never_name_the_answer() -> None:
    for puzzle in (puzzle for family in PUZZLES for puzzle in puzzles(family, 40)):
        for trial in puzzle.trials[:-1]:
            assert puzzle.write_notes(trial.state) != puzzle.write_notes(puzzle.trials[-1].state)
            assert puzzle.candidate(trial.state) < puzzle.answer


def test_splits_of_puzzles_share_no_question() -> None:
    weights = dict.fromkeys(PUZZLES, 1.0)
    train, held = (
        {e.question for e in islice(distinct_exercises(0, split, weights=weights, families=PUZZLES), 300)}
        for split in ("train", "heldout")
    )
    assert not train & held
    assert {split_of(question) for question in held} == {"heldout"}


def test_solution_without_a_thought_is_the_trials_and_the_statement() -> None:
    (puzzle,) = puzzles("congruences", 1)
    steps = list(puzzle.solution_steps(ExactWriter(), random.Random(0)))
    assert len(steps) == len(puzzle.trials) + 1
    assert check_thought(puzzle, "\n".join(steps) + "\n").first_right_statement is not None
