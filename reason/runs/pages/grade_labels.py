"""Labels of grades on pages: a word and a symbol, so that colour is never the only mark."""

from __future__ import annotations

from typing import NamedTuple

from reason.runs.result import ProblemResult


class GradeLabel(NamedTuple):
    """`kind` is for programs; `word` and `symbol` are for readers."""

    kind: str
    word: str
    symbol: str


GRADE_LABELS = {
    label.kind: label
    for label in (
        GradeLabel("right", "correct", "✓"),
        GradeLabel("wrong", "wrong", "✗"),
        GradeLabel("no_answer", "no answer", "–"),
        GradeLabel("error", "error", "!"),
        GradeLabel("ungraded", "ungraded", "?"),
    )
}


def grade_label_of(result: ProblemResult | None) -> GradeLabel:
    """Returns the label of a result; without a result it is `ungraded`.

    >>> grade_label_of(ProblemResult(id="p", error="ValueError: no")).word, grade_label_of(None).word
    ('error', 'ungraded')
    """
    if result is None:
        return GRADE_LABELS["ungraded"]
    return GRADE_LABELS["error" if result.error is not None else result.grade.value]
