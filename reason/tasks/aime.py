r"""AIME 2024 and 2025: thirty problems a year, answers are integers from 0 to 999.

A row of `HuggingFaceH4/aime_2024` (split train); answers are strings and may be zero-padded:

    {"id": 67, "problem": "Find the number of ...", "solution": "...", "answer": "025",
     "url": "https://.../2024_AIME_I_Problems/Problem_8", "year": "2024"}

`Maxwell-Jia/AIME_2024` spells its fields `ID, Problem, Solution, Answer`; `math-ai/aime25` (split test) has
`problem, answer, id`; `opencompass/AIME2025` has `question, answer`. `AI-MO/aimo-validation-aime` holds
*three* years: rows whose url or id names another year are left out here.
"""

from __future__ import annotations

import re

from reason.grading.canonical import canonical_answer
from reason.problem import Problem
from reason.tasks.base import Task, validate_subset
from reason.tasks.hub import HubDataset, load_rows
from reason.tasks.rows import DatasetRow, DataUnavailable

SOURCES = {
    2024: HubDataset(repo="HuggingFaceH4/aime_2024", split="train", fields="problem, answer"),
    2025: HubDataset(repo="math-ai/aime25", split="test", fields="problem, answer"),
}
_YEAR = re.compile(r"(20\d\d)[_-](?:AIME|I)")


class Aime(Task):
    """The AIME problems of one year (2024 or 2025), from `path` or from the hub.

    Raises: ValueError, DataUnavailable, InvalidRow.
    """

    def __init__(
        self,
        *,
        year: int = 2024,
        path: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        shuffle_seed: int | None = None,
    ) -> None:
        validate_subset(limit=limit, offset=offset, shuffle_seed=shuffle_seed)
        if year not in SOURCES:
            raise ValueError(f"task.year must be one of {', '.join(map(str, SOURCES))}; got {year!r}")
        name = f"aime{year % 100}"
        rows = load_rows(path, SOURCES[year])
        problems = [_problem(row, name) for row in rows if year_of(row) in (None, year)]
        if not problems:
            raise DataUnavailable(f"{rows[0].file} holds no AIME problem of {year}, only of {year_of(rows[0])}")
        super().__init__(name, problems, limit=limit, offset=offset, shuffle_seed=shuffle_seed)


def year_of(row: DatasetRow) -> int | None:
    """Returns the year in the row's url or id, or None where neither has one.

    >>> rows = DatasetRow({"ID": "2024-II-4"}, "f", 1, 0), DatasetRow({"url": "x/2023_AIME_I_Problems"}, "f", 1, 0)
    >>> year_of(rows[0]), year_of(rows[1])
    (2024, 2023)
    """
    for field in ("url", "ID", "id"):
        if year_match := _YEAR.search(str(row.fields.get(field, ""))):
            return int(year_match[1])
    return None


def _problem(row: DatasetRow, name: str) -> Problem:
    gold = canonical_answer(row.require_text("answer", "Answer"))
    if not gold.isdecimal():
        raise row.invalid_row(f"field 'answer' must be an integer from 0 to 999, got {gold!r}")
    identity = row.first_value("id", "ID")
    return Problem(
        id=f"{name}/{row.index if identity is None else identity}",
        question=row.require_text("problem", "Problem", "question"),
        answer=gold,
        meta=row.other_fields("problem", "Problem", "question", "answer", "Answer"),
    )
