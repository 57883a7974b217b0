"""Interfaces of a search: what a strategy receives and what it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from decoding.core import TokenGenerator, Tokens, Usage, Vector
from decoding.validation import MAX_INT, require_count, require_positive
from search.problem_text import ProblemText
from search.selection import Selection
from search.steps import DelimiterSteps, StepRule
from search.thought import ThoughtBudget
from search.tree import SearchTree, Step
from search.weak_branches import ConfidenceFloor

StopReason = Literal["done", "budget", "decided"]


StepScores = Sequence[float | None]
"""Scores of a path's steps in [0, 1]; None: the scorer leaves the step out."""


class StepScorer(Protocol):
    """Scores the steps of paths for a question that is already bound: process reward models, likelihoods."""

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """Scores every step of every path in [0, 1]: `len(scores[i]) == len(paths[i])`.

        A path that cannot be scored has None, never zeros. So has a step that the scorer leaves out.
        """
        ...


@dataclass(frozen=True)
class ScoredPaths:
    """Step scores of each path (None: not scored), and the usage of scoring them."""

    scores: Sequence[StepScores | None]
    usage: Usage = field(default_factory=Usage)


class StepEmbedder(Protocol):
    """Embeds steps so that steps with the same meaning have a small cosine distance.

    distance_threshold   cosine distance below which two steps have the same meaning; different for each embedder
    needs_hidden_states  whether the engine must return the hidden states of the model that generates
    """

    @property
    def distance_threshold(self) -> float: ...
    @property
    def needs_hidden_states(self) -> bool: ...

    async def embed(self, steps: Sequence[Step], hidden: Sequence[Vector | None]) -> Vector:
        """Embeds steps into float32 `[n, e]` with n >= 1; `hidden` holds the hidden state at the end of each step."""
        ...


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of one search; None is no limit. A search that reaches one ends normally, with the best answer so far.

    tokens    generated tokens
    seconds   wall clock from the start of the search
    calls     requests sent to the engine
    forwards  target forward passes, summed over branches; passes that only prefill a prompt may exceed the limit. How
              many a text takes depends on the drafts that are accepted, and so on the branches that run beside it: two
              runs with speculation may end at different tokens

    Raises: ValueError naming the limit.
    """

    tokens: int | None = None
    seconds: float | None = None
    calls: int | None = None
    forwards: int | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "calls", "forwards"):
            require_count(f"budget.{name}", getattr(self, name), at_least=1, at_most=MAX_INT, or_null=True)
        if self.seconds is not None:
            require_positive("budget.seconds", self.seconds)


@dataclass(frozen=True)
class StepEvent:
    """Steps of a continuation that was just generated, and the score of the last of them if it has one."""

    steps: Sequence[Step]
    score: float | None


@dataclass(frozen=True)
class EarlierSamples:
    """Whole solutions that a search has already, in an earlier part of it.

    candidates    the solutions, in the order of their requests
    usage         of the search so far, its seconds included
    num_requests  solutions that were requested, those without any token included: the next one has the next seed
    """

    tree: SearchTree
    candidates: tuple[Candidate, ...]
    usage: Usage
    num_requests: int


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one search may use. Made per problem by the solver; contains nothing of the gold answer.

    engine          generates continuations
    scorer          scores paths; None for strategies with `needs_scorer` False
    decode          token ids to text
    extract_answer  the final answer in the text of a solution, in a comparable form, or None; votes count these
    step_rule       where a step ends
    thought         when thoughts are ended by force; None: never
    problem_text    makes prompts from texts; None for strategies that write none
    seed            seed of this problem; branches derive theirs from it
    group           name of this problem in the engine (requests of a group share draft tables)
    context_window  maximum tokens of prompt and solution that the model supports; None if unknown
    end_tokens      ids with which the model ends every text
    embedder        embeds steps; None for strategies with `needs_embedder` False
    scorer_timeout  seconds a path waits for its scores before it counts as not scored; None waits without limit
    num_top         `GenerationRequest.num_top` of all requests: what scorer, step rule and strategy read of each token
    floor           below which confidence whole solutions are dropped while they are being written; None: none is
    earlier         solutions to go on from; only strategies with `continues_samples` get any
    clock           seconds; the deadlines of requests are instants on it
    on_step         called with each continuation when it is generated, possibly long before it is in the tree; runs on
                    the event loop, so it must return quickly
    on_selection    called with each decision over open branches, in the same way
    """

    engine: TokenGenerator
    scorer: StepScorer | None
    decode: Callable[[Tokens], str]
    extract_answer: Callable[[str], str | None]
    step_rule: StepRule = field(default_factory=DelimiterSteps)
    thought: ThoughtBudget | None = None
    problem_text: ProblemText | None = None
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    group: str = ""
    context_window: int | None = None
    end_tokens: frozenset[int] = frozenset()
    embedder: StepEmbedder | None = None
    scorer_timeout: float | None = None
    num_top: int = 0
    floor: ConfidenceFloor | None = None
    earlier: EarlierSamples | None = None
    clock: Callable[[], float] = time.monotonic
    on_step: Callable[[StepEvent], None] | None = None
    on_selection: Callable[[Selection], None] | None = None


@dataclass(frozen=True)
class Candidate:
    """Solution of a search: finished, or cut short by a limit.

    It may be chosen if it finished or has an answer. `score` is the path's score under the strategy's `agg_strategy`;
    None means not scored, never 0.
    """

    node: int
    answer: str | None
    score: float | None


@dataclass(frozen=True)
class SearchResult:
    """Tree of a search and the solution that the strategy chose.

    best         node of the chosen candidate; None if no candidate may be chosen
    stop_reason  `budget` if the budget refused a request or cut one short, a thought too, `decided` after an early
                 stop, else `done`
    votes        votes of each answer under the rule that chose
    candidates   all solutions, in the order of their requests; a path that votes several times is there as often
    selections   decisions over open branches, in order
    """

    tree: SearchTree
    best: int | None
    usage: Usage
    stop_reason: StopReason = "done"
    votes: dict[str, float] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()
    selections: tuple[Selection, ...] = ()

    @property
    def score(self) -> float | None:
        """Score of the chosen candidate; None if it is not scored or nothing was chosen."""
        return next((c.score for c in self.candidates if c.node == self.best), None)


class Strategy(Protocol):
    """Explores continuations of a prompt under a budget. A frozen dataclass: its fields are its knobs.

    A new strategy is a class with these attributes and a yaml in `conf/search/`; no list names it. One that writes
    prompts of its own, or continues its earlier output, also says so: `search.revision_search.RevisionSearch`.
    """

    @property
    def select(self) -> str:
        """Voting rule under which the answer is chosen: `majority`, `weighted`, `best` or `tournament`."""
        ...

    @property
    def needs_scorer(self) -> bool:
        """Whether the strategy cannot choose without scores; checked before any model is loaded."""
        ...

    @property
    def needs_embedder(self) -> bool:
        """Whether the strategy compares steps by their meaning; an embedder is loaded only then."""
        ...

    @property
    def by_steps(self) -> bool:
        """Whether the strategy continues branches step by step; False if it requests whole solutions only."""
        ...

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult: ...
