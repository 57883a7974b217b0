"""What goes into a solver and what comes out of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from decoding.core import Spent, Tokens
from search.strategy import SearchResult
from search.tree import SearchTree


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A question. `answer` is the gold answer, None if unknown; `meta` whatever else the data set gives.

    `prompt` are the ids the search starts from, where the question alone does not say: a conversation, a text to go on
    with. Without them the question is put the way the model wants to be asked.
    """

    id: str
    question: str
    answer: str | None = None
    prompt: Tokens | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def ask(cls, question: str, *, prompt: Tokens | None = None) -> Problem:
        """A problem from a bare question; its id is the same whenever the same question is asked.

        Raises: ValueError for an empty question.

        >>> Problem.ask("What is 1+1?").id
        'question-df219761'
        """
        if not question.strip():
            raise ValueError("question must not be empty")
        digest = hashlib.blake2b(question.encode(), digest_size=4).hexdigest()
        return cls(id=f"question-{digest}", question=question, prompt=prompt)


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What solving one problem gave.

    answer   the chosen final answer in the spelling under which votes are counted, None if no solution had one
    text     the chosen solution's text, "" if nothing finished
    score    its aggregated score, None if not scored
    result   the whole search: tree, votes, what was spent
    """

    problem: Problem
    answer: str | None
    text: str
    score: float | None
    result: SearchResult

    @property
    def tree(self) -> SearchTree:
        """Everything that was explored."""
        return self.result.tree

    @property
    def spent(self) -> Spent:
        """What it took."""
        return self.result.spent

    @property
    def votes(self) -> dict[str, float]:
        """What each answer had going for it; the chosen answer has the most."""
        return self.result.votes
