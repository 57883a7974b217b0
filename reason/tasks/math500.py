r"""MATH-500: five hundred competition problems whose answers are LaTeX of any kind.

A row of `HuggingFaceH4/MATH-500` (split test):

    {"problem": "Convert the point $(0,3)$ ...", "solution": "We have ...", "subject": "Precalculus", "level": 2,
     "answer": "\\left( 3, \\frac{\\pi}{2} \\right)", "unique_id": "test/precalculus/807.json"}
"""

from __future__ import annotations

from reason.problem import Problem
from reason.tasks.base import Task, validate_subset
from reason.tasks.hub import HubDataset, load_rows
from reason.tasks.rows import DatasetRow

SOURCE = HubDataset(repo="HuggingFaceH4/MATH-500", split="test", fields="problem, answer")


class Math500(Task):
    """MATH-500 from `path` or from the hub. Raises: ValueError, DataUnavailable, InvalidRow."""

    def __init__(
        self, *, path: str | None = None, limit: int | None = None, offset: int = 0, shuffle_seed: int | None = None
    ) -> None:
        validate_subset(limit=limit, offset=offset, shuffle_seed=shuffle_seed)
        problems = [_problem(row) for row in load_rows(path, SOURCE)]
        super().__init__("math500", problems, limit=limit, offset=offset, shuffle_seed=shuffle_seed)


def _problem(row: DatasetRow) -> Problem:
    identity = str(row.first_value("unique_id", "id") if row.first_value("unique_id", "id") is not None else row.index)
    return Problem(
        id=f"math500/{identity.removeprefix('test/').removesuffix('.json')}",
        question=row.require_text("problem", "question"),
        answer=row.require_text("answer"),
        meta=row.other_fields("problem", "question", "answer"),
    )
