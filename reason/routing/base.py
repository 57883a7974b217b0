"""Defines what a router reads before a step is written and what it decides.

A new router is one file here (or in a plugin) and one yaml in conf/router: subclass `StatelessRouter`, set the class
attributes that differ, and write `choose_author`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, Self

from decoding.core import Tokens, Usage
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer
from search.scoring import score_paths
from search.strategy import StepScorer
from search.tree import Step

StepAuthor = Literal["draft", "target"]  # the values in saved trees: "draft" is the small model
StepsRead = Literal["none", "small", "both"]


@dataclass(frozen=True)
class RoutingContext:
    """Everything a router may read to decide which model writes one step.

    previous_steps  the steps before it; their `model` is the author, where that is known
    small_step      the small model's proposal; None where the router reads none
    target_step     the target model's proposal; None unless the router reads both
    seed            of this step: the same number whenever and beside whatever the step is written
    scorer          the problem's reward model, or None
    group           the problem's name
    prefix          token ids of the prompt and the previous steps
    """

    previous_steps: tuple[Step, ...]
    small_step: Step | None
    target_step: Step | None
    seed: int
    scorer: StepScorer | None
    group: str = ""
    prefix: Tokens = ()


@dataclass(frozen=True)
class RoutingDecision:
    """The model that writes a step, the number behind the decision (None: no number), and the cost of deciding."""

    author: StepAuthor
    score: float | None = None
    usage: Usage = field(default_factory=Usage)


class BoundRouter(Protocol):
    """Decides which model writes each step of one problem.

    steps_read  which proposals are generated before the decision: `none`; `small`, the small model's; `both`, so that
                the target model runs for every step
    """

    @property
    def steps_read(self) -> StepsRead: ...

    async def choose_author(self, context: RoutingContext) -> RoutingDecision:
        """Returns the model whose step is accepted. Called concurrently for several steps."""
        ...


class Router(Protocol):
    """A configured router, shared by all problems; its constructor checks the knobs and loads nothing.

    needs_small_model  False only for router=off, which leaves the target model's engine alone
    needs_scorer       whether it reads scores, so that scorer=none is refused
    needs_logprobs     whether it reads the small model's log-probabilities
    num_top            `GenerationRequest.num_top` that it needs of both models; 0: it reads no entropies
    """

    @property
    def needs_small_model(self) -> bool: ...
    @property
    def needs_scorer(self) -> bool: ...
    @property
    def needs_logprobs(self) -> bool: ...
    @property
    def num_top(self) -> int: ...

    def validate(self, target: Checkpoint) -> None:
        """Checks everything that needs no weights against the target model's checkpoint. Raises: ValueError."""
        ...

    def load(self, tokenizer: PretrainedTokenizer) -> None:
        """Loads the router's own model, once; `tokenizer` is the target model's. Raises: ValueError."""
        ...

    def bind(self, question: str, prompt: Tokens) -> BoundRouter:
        """Returns the router of one problem; `prompt` holds the target model's token ids."""
        ...

    def close(self) -> None:
        """Frees what `load` allocated."""
        ...


class StatelessRouter:
    """Base of routers that load nothing and decide alike for every problem: each is its own `BoundRouter`."""

    steps_read: ClassVar[StepsRead] = "small"
    needs_small_model: ClassVar[bool] = True
    needs_scorer: ClassVar[bool] = False
    needs_logprobs: ClassVar[bool] = False
    num_top: ClassVar[int] = 0

    def validate(self, target: Checkpoint) -> None:
        """Accepts every target model."""

    def load(self, tokenizer: PretrainedTokenizer) -> None:
        """Loads nothing."""

    def bind(self, question: str, prompt: Tokens) -> Self:
        """Returns the router itself."""
        return self

    def close(self) -> None:
        """Frees nothing."""


async def score_step(
    scorer: StepScorer | None, previous_steps: Sequence[Step], step: Step
) -> tuple[float | None, Usage]:
    """Returns the step's score, None if it has none, and the cost. The scorer reads nothing again for a path that it
    scored before."""
    assert scorer is not None, "a router with needs_scorer runs without a scorer"
    scored = await score_paths(scorer, [[*previous_steps, step]])
    scores = scored.scores[0]
    return (scores[-1] if scores else None), scored.usage
