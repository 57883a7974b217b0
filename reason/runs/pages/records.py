"""Defines what the pages draw: types of the plain data in `trees/*.json`, and labels of grades.

A label has a word and a symbol, so that colour is never the only mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from reason.runs.result import ProblemResult


class CandidateRecord(TypedDict, total=False):
    """One candidate solution: its last step, its answer and its score."""

    node: int
    answer: str | None
    score: float | None


class TreeRecord(TypedDict, total=False):
    """A whole search; the pages need `nodes` only.

    thoughts    the length of the text of a step that belongs to the thought, by the step's number; without zeros
    nodes       as written by `search.tree.SearchTree.to_dict`, and so are `contexts`
    selections  as in `search.selection.Selection`
    strategy    `_target_` and the settings of the search
    allocated   samples that the problem was given, in a run that divides them among its problems
    """

    id: str
    question: str
    best: int | None
    answer: str | None
    votes: Mapping[str, float]
    stopped: str
    candidates: Sequence[CandidateRecord]
    selections: Sequence[Mapping[str, Any]]
    thoughts: Mapping[str, int]
    strategy: Mapping[str, Any]
    root: Sequence[int]
    nodes: Sequence[Mapping[str, Any]]
    contexts: Sequence[Mapping[str, Any]]
    allocated: int


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
