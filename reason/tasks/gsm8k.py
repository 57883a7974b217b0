r"""GSM8K: grade-school word problems; the published answer is a worked solution that ends in `#### 18`.

A row of `openai/gsm8k` (config main, split test):

    {"question": "Janet's ducks lay 16 eggs per day. ...",
     "answer": "Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 duck eggs a day.\n...\n#### 18"}
"""

from __future__ import annotations

from reason.grading.canonical import canonical_answer
from reason.problem import Problem
from reason.tasks.base import Task, validate_subset
from reason.tasks.hub import HubDataset, load_rows
from reason.tasks.rows import DatasetRow

SOURCE = HubDataset(repo="openai/gsm8k", config="main", split="test", fields="question, answer")


class Gsm8k(Task):
    """The test split of GSM8K from `path` or from the hub. Raises: ValueError, DataUnavailable, InvalidRow."""

    def __init__(
        self, *, path: str | None = None, limit: int | None = None, offset: int = 0, shuffle_seed: int | None = None
    ) -> None:
        validate_subset(limit=limit, offset=offset, shuffle_seed=shuffle_seed)
        problems = [_problem(row) for row in load_rows(path, SOURCE)]
        super().__init__("gsm8k", problems, limit=limit, offset=offset, shuffle_seed=shuffle_seed)


def _problem(row: DatasetRow) -> Problem:
    """The gold answer is what follows the last `####`; an answer without one is taken as it is."""
    solution = row.require_text("answer")
    worked, marker, final = solution.rpartition("####")
    if not (gold := canonical_answer(final)):
        raise row.invalid_row("nothing follows #### in field 'answer'")
    identity = row.first_value("idx", "id")
    return Problem(
        id=f"gsm8k/{row.index if identity is None else identity}",
        question=row.require_text("question", "problem"),
        answer=gold,
        meta=row.other_fields("question", "problem", "answer") | ({"solution": worked.strip()} if marker else {}),
    )
