"""Defines scorers, embedders, and the two interfaces of a reward-model format: its adapter and its encoding of steps.

A new format is two files: a module in `formats/` (or a plugin) with an adapter, and a yaml in conf/scorer. A new kind
of head is one more class, see `heads.py`. How a path's prefix is reused: `prefixes.py`, `incremental.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from decoding.core import Tokens
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.heads import RewardHead
from search.strategies.tournament import SolutionReferee, TournamentRules
from search.strategy import StepEmbedder, StepScorer
from search.tree import Step

if TYPE_CHECKING:
    from reason.engines.http.settings import ServerSettings

Floats = npt.NDArray[np.float64]


class Scorer(Protocol):
    """A configured scorer: made in microseconds, loaded once, bound to every problem.

    Constructors check their knobs and load nothing, so that a misspelt setting costs no time.

    gives_scores   False only for scorer=none, which strategies and routers that need scores refuse
    judges_solutions    may be left out; True where a score is a probability that the solution is right
    num_top        `GenerationRequest.num_top` of generations that it reads the uncertainty of; 0: it reads none
    """

    @property
    def gives_scores(self) -> bool: ...
    @property
    def num_top(self) -> int: ...
    @property
    def servers(self) -> ServerSettings | None:
        """The settings of the servers that run its model; None where no server does."""
        ...

    def validate(self) -> None:
        """Checks everything that needs no weights. Raises: ValueError in one sentence."""
        ...

    def validate_writer(self, writer: Checkpoint) -> None:
        """Checks that it can read steps of the model at `writer`, without loading a tokenizer. Raises: ValueError."""
        ...

    def load(self, writer: PretrainedTokenizer | None = None) -> None:
        """Loads the model, once. *Mutates* the scorer.

        `writer` is the tokenizer of the model that writes the steps; a scorer that reads that model's token ids refuses
        one with another vocabulary. Raises: ValueError, as `validate` or for that.
        """
        ...

    def close(self) -> None:
        """Frees threads and memory and cancels pending scores. The next `bind` loads again."""
        ...

    def bind(self, question: str, prompt: Tokens) -> StepScorer | None:
        """Returns the step scorer of one problem, or None if this scorer gives no scores. Loads if `load` was not
        called.

        `question` is the problem's text, for scorers that read text; `prompt` is the writing model's prompt in token
        ids, for scorers that share its vocabulary.
        """
        ...


@runtime_checkable
class ComparingScorer(Protocol):
    """A scorer whose judge also compares solutions, for `select=tournament`; `tournament` is None where it has none."""

    @property
    def tournament(self) -> TournamentRules | None: ...

    def bind_referee(self, question: str) -> SolutionReferee:
        """Returns the referee of one problem."""
        ...


class StatelessScorer:
    """Base of scorers that load nothing."""

    gives_scores: ClassVar[bool] = True
    servers: ClassVar[None] = None

    @property
    def num_top(self) -> int:
        """See `Scorer`."""
        return 0

    def validate(self) -> None:
        """Accepts all knobs."""

    def validate_writer(self, writer: Checkpoint) -> None:
        """Accepts every model."""

    def load(self, writer: PretrainedTokenizer | None = None) -> None:
        """Loads nothing."""

    def close(self) -> None:
        """Frees nothing."""


class LoadableEmbedder(StepEmbedder, Protocol):
    """Embedder made from settings; its constructor checks the knobs and loads nothing."""

    def validate(self) -> None:
        """Checks what can be checked without loading. Raises: ValueError in one sentence."""
        ...

    def load(self) -> None:
        """Loads the model if there is one; a second call does nothing. *Mutates*. Raises: ValueError."""
        ...


class StepFormat(Protocol):
    """The input of one reward model: the encoding of the prompt, then one piece of tokens per step.

    Two rules make incremental scoring possible, and every format keeps them:

    *append-only*  the encoding of a path is `encode_prompt` and the `encode_step` of its steps, in order; a later step
                   never changes an earlier piece. Tokens between two steps open the second one's piece. Tokens after
                   the last step are left out: the models are causal, so that they change no score.
    *causal*       the score of a step is read from the outputs over its own piece, most often at the last token, and
                   perhaps over the pieces before it; never over a later one.
    """

    def encode_prompt(self, question: str, prompt: Tokens) -> Tokens:
        """Returns everything before the first step."""
        ...

    def encode_step(self, step: Step, *, first: bool) -> Tokens:
        """Returns the piece of one step; never empty."""
        ...

    def score_steps(self, outputs: Sequence[Floats]) -> Floats:
        """Returns scores `[K]` in [0, 1] of a path's K steps, from the head's outputs `[T, num_outputs]` over the T
        tokens of each piece."""
        ...


class PrmAdapter:
    """Describes one family of reward models: the checkpoints it reads and their format. Subclasses hold the knobs.

    architectures  values of `architectures` in config.json that this adapter reads
    head           how a hidden state becomes outputs
    context_limit  maximum tokens as trained; None: as in the model's config
    """

    architectures: ClassVar[tuple[str, ...]]
    head: ClassVar[RewardHead]
    context_limit: ClassVar[int | None] = None

    @property
    def shares_tokens(self) -> bool:
        """Whether it reads the writing model's token ids, so that both need one vocabulary."""
        return False

    def label_token_ids(self, tokenizer: PretrainedTokenizer) -> Tokens:
        """Returns the ids of "right" and "wrong" for a head of label tokens; empty for others."""
        return ()

    def build_format(self, tokenizer: PretrainedTokenizer) -> StepFormat:
        """Returns the format for a loaded tokenizer. Raises: ValueError if the tokenizer lacks a token it needs."""
        raise NotImplementedError
