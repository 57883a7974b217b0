"""What every strategy is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from decoding.core import Engine, Spent, Tokens, Vector
from search.selection import Selection
from search.tree import SearchTree, Step

Stopped = Literal["done", "budget", "decided"]


class StepScorer(Protocol):
    """Scores the steps of paths; the question is already bound. Ships as PRMs, likelihood, test tables."""

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """Scores in [0, 1] for every step of every path: `len(scores[i]) == len(paths[i])`.

        A path whose steps cannot be scored gets None, never zeros.
        """
        ...


@dataclass(frozen=True)
class ScoredPaths:
    """One list of step scores per path (or None: not scored), and what scoring cost."""

    scores: list[list[float] | None]
    spent: Spent = field(default_factory=Spent)


class Embedder(Protocol):
    """Says how alike two steps are. Ships as the writer's own hidden states and as sentence-transformers models.

    cut           the cosine distance below which two steps count as the same; every embedder has its own
    wants_hidden  whether the engine is to hand over the writer's hidden states
    """

    @property
    def cut(self) -> float: ...
    @property
    def wants_hidden(self) -> bool: ...

    async def embed(self, steps: Sequence[Step], hidden: Sequence[Vector | None]) -> Vector:
        """One vector per step, `[n, e]` with n >= 1; `hidden` are the writer's hidden states at their ends."""
        ...


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of one search; None is no limit. Running out is a normal end, with the best answer so far.

    tokens    generated tokens
    seconds   wall clock from the start of the search
    calls     requests sent to the engine
    forwards  target forward passes, summed over branches; those that only fill a prompt may go beyond it
    """

    tokens: int | None = None
    seconds: float | None = None
    calls: int | None = None
    forwards: int | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "seconds", "calls", "forwards"):
            value = getattr(self, name)
            ok = value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0)
            if not ok or (name != "seconds" and isinstance(value, float)):
                raise ValueError(f"budget.{name} must be a positive number or null, got {value!r}")


@dataclass(frozen=True)
class Written:
    """A continuation that was just written: its steps, and the score of the last of them if it has one."""

    steps: Sequence[Step]
    score: float | None


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one search may use. Made per problem by the solver; holds nothing of the gold answer.

    decode      token ids to text
    answer_of   the comparable final answer in a solution's text, or None; what a vote counts
    delimiter   the text that ends a step
    seed        this problem's own; branches derive theirs from it
    group       this problem's name in the engine (shared draft tables)
    window      the most tokens, prompt included, the model can hold; None if nobody knows
    embedder    who says which steps are alike; strategies that never ask do without
    scorer_timeout  seconds a path may wait for its scores; then it counts as not scored. None waits for ever
    watch       told of every continuation when it is written, which may be long before it is in the tree; must be quick
    """

    engine: Engine
    scorer: StepScorer | None
    decode: Callable[[Tokens], str]
    answer_of: Callable[[str], str | None]
    delimiter: str = "\n\n"
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    group: str = ""
    window: int | None = None
    embedder: Embedder | None = None
    scorer_timeout: float | None = None
    watch: Callable[[Written], None] | None = None


@dataclass(frozen=True)
class Candidate:
    """A solution the search brought to its end, or that was cut short on the way there.

    It may be chosen if it ended by itself or states an answer. `score` is the path's, folded by the strategy's
    `agg_strategy`; None means not scored, never 0.
    """

    node: int
    answer: str | None
    score: float | None


@dataclass(frozen=True)
class SearchResult:
    """The tree and what the strategy made of it.

    best        the chosen candidate's node; None only if none of them may be chosen
    stopped     `budget` when a request was refused or cut short by the budget, `decided` when the vote was, else `done`
    votes       what each answer had going for it under the rule that chose
    candidates  every solution, in the order they were asked for
    selections  what was decided on the way, in order
    """

    tree: SearchTree
    best: int | None
    spent: Spent
    stopped: Stopped = "done"
    votes: dict[str, float] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()
    selections: tuple[Selection, ...] = ()

    @property
    def score(self) -> float | None:
        """The chosen candidate's score; None if it has none or nothing was chosen."""
        return next((c.score for c in self.candidates if c.node == self.best), None)


class Strategy(Protocol):
    """Explores continuations of a prompt under a budget. A frozen dataclass: its fields are its knobs."""

    @property
    def needs_scorer(self) -> bool:
        """True where choosing makes no sense without scores; checked before any model is loaded."""
        ...

    @property
    def needs_embedder(self) -> bool:
        """True where steps are compared by what they say."""
        ...

    @property
    def by_steps(self) -> bool:
        """True where it goes on with what was written; False where it asks for whole solutions only."""
        ...

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult: ...
