"""What a router sees of a step, and what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

from decoding.core import Spent, Tokens
from reason.models.checkpoint import Checkpoint
from search.strategy import StepScorer
from search.tree import Step

Author = Literal["draft", "target"]
Needs = Literal["nothing", "draft", "both"]


@dataclass(frozen=True)
class Crossroads:
    """A step about to be written.

    group    the problem's name
    prefix   the prompt and the steps so far, as tokens
    before   the steps so far
    draft    the small model's; None for a router that needs nothing
    target   the large model's; None unless the router needs both
    seed     this step's own: the same wherever and whenever it is written
    scorer   the problem's reward model, or None
    """

    before: tuple[Step, ...]
    draft: Step | None
    target: Step | None
    seed: int
    scorer: StepScorer | None
    group: str = ""
    prefix: Tokens = ()


@dataclass(frozen=True)
class Verdict:
    """Who writes a step, the number that was decided by (None: none), and what reading cost."""

    author: Author
    score: float | None = None
    spent: Spent = field(default_factory=Spent)


class Stateless:
    """What a router need not say that loads nothing."""

    def check(self, writer: Checkpoint) -> None:
        """Nothing can be wrong."""

    def load(self, writer: Any) -> None:
        """Nothing to load."""

    def bind(self, question: str, prompt: Tokens) -> Self:
        """The same for every problem."""
        return self

    def close(self) -> None:
        """Nothing to give back."""


class BoundRouter(Protocol):
    """Decides who writes each step of one problem.

    needs   `nothing`: the target writes unasked; `draft`: reads the draft's step; `both`: reads both, so that the
            target writes every step whether it is kept or not
    """

    @property
    def needs(self) -> Needs: ...

    async def read(self, at: Crossroads) -> Verdict:
        """Who writes this step."""
        ...


class Router(Protocol):
    """The configured thing, with one threshold. Most are `Stateless` and their own `BoundRouter`.

    needs_scorer   whether it cannot do without a reward model
    """

    @property
    def needs_scorer(self) -> bool: ...

    def check(self, writer: Checkpoint) -> None:
        """Finds out what can be known without loading; `writer` is the large model. Raises: ValueError."""
        ...

    def load(self, writer: Any) -> None:
        """Loads whatever is needed, once; `writer` is the tokenizer of the steps. Raises: ValueError."""
        ...

    def bind(self, question: str, prompt: Tokens) -> BoundRouter:
        """The router for one problem."""
        ...

    def close(self) -> None:
        """Gives back what `load` took."""
        ...
