"""What a scorer is, and the two things a reward-model format must say about itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from decoding.core import Tokens
from search.strategy import StepScorer
from search.tree import Step

Floats = npt.NDArray[np.float64]
HeadKind = Literal["process_reward", "step_value", "token_classes", "two_words", "next_token", "token_statistics"]


class Scorer(Protocol):
    """The configured thing: made from a config in microseconds, loaded once, bound to every problem.

    Constructors check their knobs and load nothing, so that a misspelt setting costs no time.
    """

    def check(self) -> None:
        """Finds out what can be known without loading weights. Raises: ValueError in one sentence."""
        ...

    def load(self, writer: Any = None) -> None:
        """Loads whatever is needed, once. *Mutates* the scorer.

        `writer` is the tokenizer of whoever writes the steps; a scorer that reads the writer's tokens refuses one
        with another vocabulary. Raises: ValueError, as `check` or for that.
        """
        ...

    def close(self) -> None:
        """Gives back threads and memory; what is being scored is cancelled. The next `bind` loads again."""
        ...

    def bind(self, question: str, prompt: Tokens) -> StepScorer | None:
        """A step scorer for one problem, or None if this scorer scores nothing. Loads if `load` was not called.

        `question` is the problem's text, for scorers that read text; `prompt` the token ids that the writer of
        the steps was given, for scorers that share its vocabulary.
        """
        ...


class StepFormat(Protocol):
    """How one reward model wants its input: a beginning, then one piece of tokens per step.

    Two rules make scoring incremental, and every format keeps them:

    *append-only*  the encoding of a path is `begin` and the pieces of its steps, in order; a later step never
                   changes an earlier piece. What a format writes after a step but before the next one belongs
                   to the next piece; what it writes after the last step is left out, because the models are
                   causal and it could not change any score.
    *causal*       the score of a step is read from the outputs over its own piece, most often at the last token, and
                   perhaps over the pieces before it; never over a later one.
    """

    def begin(self, question: str, prompt: Tokens) -> Tokens:
        """Everything before the first step."""
        ...

    def piece(self, step: Step, *, first: bool) -> Tokens:
        """What one step adds; never empty."""
        ...

    def read(self, pieces: Sequence[Floats]) -> Floats:
        """Scores `[K]` in [0, 1] of a path's K steps, from the head's outputs `[len(piece), outputs]` over each."""
        ...


class Adapter(Protocol):
    """One family of reward models: which checkpoints it can read and how to talk to them.

    architectures  names in `config.json` that this adapter understands
    head           how a hidden state becomes outputs (see `heads.py`)
    context_limit  tokens the model was trained for, or None for whatever its config says
    shares_tokens  whether it reads the writer's own token ids, so that both need one vocabulary
    """

    @property
    def architectures(self) -> tuple[str, ...]: ...
    @property
    def head(self) -> HeadKind: ...
    @property
    def context_limit(self) -> int | None: ...
    @property
    def shares_tokens(self) -> bool: ...

    def words(self, tokenizer: Any) -> Tokens:
        """For `two_words`: the ids of "right" and "wrong", whose logits are the outputs. Otherwise empty."""
        ...

    def format(self, tokenizer: Any) -> StepFormat:
        """The format for a loaded tokenizer. Raises: ValueError if the tokenizer lacks what the format needs."""
        ...
