r"""GPQA Diamond: graduate-level questions with four choices; the answer is a letter.

A row of `Idavidrein/gpqa` (config gpqa_diamond, split train; gated: its terms must be accepted first):

    {"Question": "...", "Correct Answer": "...", "Incorrect Answer 1": "...", "Incorrect Answer 2": "...",
     "Incorrect Answer 3": "...", "Record ID": "rec...", "Subdomain": "...", ...}

The published row names the right choice, so the choices must be shuffled. Here their order depends on the
question alone: it is the same in every run, for every subset and in every copy of the data.
Copies with `question, choices, answer` (a letter, an index from 0, or the choice itself) keep their order, and
copies with `question, answer` are taken to show the choices in the question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from reason.grading.answer import find_letter
from reason.problem import Problem
from reason.tasks.base import Task, validate_subset
from reason.tasks.hub import HubDataset, load_rows
from reason.tasks.rows import DatasetRow
from search.seeds import derive_seed

SOURCE = HubDataset(
    repo="Idavidrein/gpqa",
    config="gpqa_diamond",
    split="train",
    fields="Question, Correct Answer, Incorrect Answer 1, Incorrect Answer 2, Incorrect Answer 3",
    note=" (a gated data set: accept its terms on its page and log in with `hf auth login`)",
)
LETTERS = "ABCDEFGHIJ"
_INCORRECT = tuple(f"Incorrect Answer {i}" for i in (1, 2, 3))


class Gpqa(Task):
    """GPQA Diamond from `path` or from the hub. Raises: ValueError, DataUnavailable, InvalidRow."""

    def __init__(
        self, *, path: str | None = None, limit: int | None = None, offset: int = 0, shuffle_seed: int | None = None
    ) -> None:
        validate_subset(limit=limit, offset=offset, shuffle_seed=shuffle_seed)
        problems = [_problem(row) for row in load_rows(path, SOURCE)]
        super().__init__("gpqa", problems, limit=limit, offset=offset, shuffle_seed=shuffle_seed, find=find_letter)


def format_question(question: str, choices: Sequence[str]) -> str:
    """Formats a question and its choices.

    >>> print(format_question("Which is even?", ["1", "2"]))
    Which is even?
    <BLANKLINE>
    (A) 1
    (B) 2
    <BLANKLINE>
    Answer with the letter of the correct choice.
    """
    listed = "\n".join(f"({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
    return f"{question}\n\n{listed}\n\nAnswer with the letter of the correct choice."


def _problem(row: DatasetRow) -> Problem:
    question = row.require_text("Question", "question", "problem")
    choices, gold = _choices(row, question)
    identity = row.first_value("Record ID", "id")
    return Problem(
        id=f"gpqa/{row.index if identity is None else identity}",
        question=format_question(question, choices) if choices else question,
        answer=gold,
        meta={"choices": choices} if choices else {},
    )


def _read_choices(row: DatasetRow, listed: object) -> list[str]:
    if isinstance(listed, str) or not isinstance(listed, Sequence) or not 1 < len(listed) <= len(LETTERS):
        raise row.invalid_row(f"field 'choices' must be a list of 2 to {len(LETTERS)} choices, got {listed!r:.200}")
    return [str(choice).strip() for choice in listed]


def _choices(row: DatasetRow, question: str) -> tuple[list[str], str]:
    """Returns the choices in the order in which they are shown, and the letter of the correct one."""
    if row.first_value("Correct Answer") is not None:
        right = row.require_text("Correct Answer")
        keyed = [(name, row.require_text(name)) for name in ("Correct Answer", *_INCORRECT)]
        keyed.sort(key=lambda pair: derive_seed("gpqa", question, pair[0]))
        choices = [choice for _, choice in keyed]
        return choices, LETTERS[choices.index(right)]
    listed = row.first_value("choices", "options")
    choices = _read_choices(row, listed) if listed else []
    answer = row.require_text("answer", "Answer")
    if choices and re.fullmatch(r"\d", answer) and int(answer) < len(choices) and answer not in choices:
        answer = LETTERS[int(answer)]
    elif answer in choices:
        answer = LETTERS[choices.index(answer)]
    letter = find_letter(answer)
    if letter is None or (choices and LETTERS.index(letter) >= len(choices)):
        raise row.invalid_row(f"field 'answer' must name one of the choices, got {answer!r}")
    return choices, letter
