"""The input of a solver, a problem, and its output, a solution."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from decoding.core import Tokens, Usage
from decoding.validation import require_text, shorten
from reason.thinking import SolutionReader
from search.strategy import SearchResult
from search.tree import SearchTree


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A question. `answer` is the gold answer, None if unknown; `meta` holds other fields of the data set.

    `prompt` are the token ids the search starts from where the question alone does not determine them: a conversation,
    or a text to continue. Without them the model's prompt format renders the question.

    `read_answer` reads what votes count from the text behind a thought, in place of the solver's rule: None is no vote.
    `num_alternatives` likely tokens are recorded at every place, for `Solution.top_tokens`; only engines with
    `EngineSettings.names_tokens` take more than 0. `json_schema` constrains what is generated; only engines with
    `EngineSettings.constrains_json` take one.
    `check_prefix` checks the beginning of a solution exactly: whether it is correct so far, None where its last step is
    not complete. None: the task has no such checker.

    Raises: ValueError naming a field whose text is not Unicode.
    """

    id: str
    question: str
    answer: str | None = None
    prompt: Tokens | None = None
    meta: Mapping[str, object] = field(default_factory=dict)
    read_answer: Callable[[str], str | None] | None = None
    json_schema: str | None = None
    num_alternatives: int = 0
    check_prefix: Callable[[str], bool | None] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("id", "question", "answer", "meta"):
            require_text(name, getattr(self, name))

    @classmethod
    def from_question(cls, question: str, *, prompt: Tokens | None = None) -> Problem:
        """Returns a problem for a bare question; equal questions get equal ids.

        Raises: ValueError for a question that is empty or not Unicode.

        >>> Problem.from_question("What is 1+1?").id
        'question-df219761'
        """
        if not isinstance(question, str):
            raise ValueError(f"question must be a text, got {shorten(question)}")
        if not question.strip():
            raise ValueError("question must not be empty")
        require_text("question", question)  # before its hash, which encodes it
        digest = hashlib.blake2b(question.encode(), digest_size=4).hexdigest()
        return cls(id=f"question-{digest}", question=question, prompt=prompt)


class LikelyToken(NamedTuple):
    """A token and its log-probability under the model (temperature 1, unfiltered)."""

    id: int
    logprob: float


class TokenAlternatives(Protocol):
    """What was likely at the places of a search, see `reason.engines.top_tokens`."""

    def find(self, tokens: Tokens, start: int) -> list[list[LikelyToken]]:
        """Returns what was likely at each token from `start` on, best first; nothing where no engine chose one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Solution:
    """The result of solving one problem.

    answer   the chosen final answer in the canonical form that voting compares, None if no solution states one
    text     the chosen solution's text without its thought, "" if nothing finished
    score    its aggregated score, None if not scored
    result   the whole search: tree, votes, usage
    thought  what the model wrote before the text between the tags of `model.thinking`, "" without one
    reader   splits solutions of this problem into thought and text
    is_trusted  whether the answer's score, or share of the votes, is at least `trusted_score`; None where nothing tells
    top_tokens  the most likely tokens at every place of the tree; None where the problem does not ask for them
    """

    problem: Problem
    answer: str | None
    text: str
    score: float | None
    result: SearchResult
    thought: str = ""
    reader: SolutionReader = field(default_factory=SolutionReader)
    is_trusted: bool | None = None
    top_tokens: TokenAlternatives | None = field(default=None, compare=False, repr=False)

    @property
    def tree(self) -> SearchTree:
        """The explored tree."""
        return self.result.tree

    @property
    def usage(self) -> Usage:
        """Tokens, engine calls, forward passes and seconds of the search."""
        return self.result.usage

    @property
    def full_text(self) -> str:
        """The chosen solution as the model wrote it: thought, tags and text; "" if nothing finished."""
        return "" if self.result.best is None else self.tree.path_text(self.result.best)

    @property
    def votes(self) -> dict[str, float]:
        """The weight of each answer; the chosen answer has the largest."""
        return self.result.votes
