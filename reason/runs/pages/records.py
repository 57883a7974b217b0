"""Types of the plain data in `trees/*.json`, which the pages draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class CandidateRecord(TypedDict, total=False):
    """One candidate solution: its last step, its answer and its score."""

    node: int
    answer: str | None
    score: float | None


class TreeRecord(TypedDict, total=False):
    """A whole search; the pages need `nodes` only.

    nodes       as written by `search.tree.SearchTree.to_dict`
    selections  as in `search.selection.Selection`
    strategy    `_target_` and the settings of the search
    """

    id: str
    question: str
    best: int | None
    answer: str | None
    votes: Mapping[str, float]
    stopped: str
    candidates: Sequence[CandidateRecord]
    selections: Sequence[Mapping[str, Any]]
    strategy: Mapping[str, Any]
    root: Sequence[int]
    nodes: Sequence[Mapping[str, Any]]
