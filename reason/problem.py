"""What goes into a solver and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from search.base import SearchResult


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A question. `answer` is the gold answer, None if unknown; `meta` whatever else the data set gives."""

    id: str
    question: str
    answer: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What solving one problem gave.

    answer   the chosen final answer, None if no solution had one
    text     the chosen solution's text, "" if nothing finished
    score    its aggregated score, None if not scored
    result   the whole search: tree, votes, what was spent
    """

    problem: Problem
    answer: str | None
    text: str
    score: float | None
    result: SearchResult
