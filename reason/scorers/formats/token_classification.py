r"""Token classifiers: class 1 is "right".

Which tokens they judge, chosen by `judges`:

steps   The last token of every step, as trained with TRL: a step's score is the share of class 1 there.
tokens  Every token, as the bundled reward model does: how likely it is right if all before are. A step's score is the
        product of the shares of class 1 over the tokens up to its end: how likely everything so far is right.

Two ways in, chosen by `reads`:

tokens  The model shares the writer's vocabulary: it reads the prompt's and the steps' own ids as they are, and a
        step's last token is its delimiter or the end of the text.
text    TRL's `PRMTrainer` (HuggingFaceH4/Qwen2.5-Math-1.5B-Instruct-PRM-0.2 and -7B-): BOS if there is one, the
        question, then every step followed by the separator, each tokenised alone; the label stands at the last
        token of the separator. The trainer puts nothing between question and first step; the published model
        cards put a separator there, and so do we (`after_question`).

Append-only in both: nothing is tokenised across a seam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from decoding.core import Tokens
from reason.scorers.base import Floats, HeadKind, StepFormat
from reason.scorers.probabilities import last, pair_probability
from reason.scorers.text import encode
from search.tree import Step


@dataclass(frozen=True, kw_only=True)
class TokenClassifier:
    """Adapter for `...ForTokenClassification` with two labels.

    Raises: ValueError for an unknown `reads` or `judges`, or an empty separator.
    """

    reads: Literal["tokens", "text"] = "text"
    judges: Literal["steps", "tokens"] = "steps"
    separator: str = "\n\n"
    after_question: str = "\n\n"

    architectures: ClassVar[tuple[str, ...]] = (
        "Qwen2ForTokenClassification",
        "Qwen3ForTokenClassification",
        "LlamaForTokenClassification",
        "MistralForTokenClassification",
    )
    head: ClassVar[HeadKind] = "token_classes"
    context_limit: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        if self.reads not in ("tokens", "text"):
            raise ValueError(f"reads must be tokens or text, got {self.reads!r}")
        if self.judges not in ("steps", "tokens"):
            raise ValueError(f"judges must be steps or tokens, got {self.judges!r}")
        if not isinstance(self.separator, str) or not self.separator:
            raise ValueError(f"separator must be a text of at least one character, got {self.separator!r}")
        if not isinstance(self.after_question, str):
            raise ValueError(f"after_question must be a text, got {self.after_question!r}")

    @property
    def shares_tokens(self) -> bool:
        """Whether `reads` is tokens."""
        return self.reads == "tokens"

    def words(self, tokenizer: Any) -> Tokens:
        """None: the head has classes of its own."""
        del tokenizer
        return ()

    def format(self, tokenizer: Any) -> StepFormat:
        """See `base.Adapter`."""
        scores = every_token_right if self.judges == "tokens" else right_at_the_end
        if self.shares_tokens:
            return JudgedTokens(scores)
        bos = () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)
        separator, after_question = encode(tokenizer, self.separator), encode(tokenizer, self.after_question)
        return SeparatedSteps(scores, tokenizer, bos, separator, after_question)


def right_at_the_end(pieces: Sequence[Floats]) -> Floats:
    """The share of class 1 at each piece's last token."""
    return pair_probability(last(pieces), positive=1)


def every_token_right(pieces: Sequence[Floats]) -> Floats:
    """The product of the shares of class 1 up to the end of each piece.

    >>> every_token_right([np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([[0.0, np.log(3.0)]])]).round(4).tolist()
    [0.25, 0.1875]
    """
    return np.cumprod([pair_probability(piece, positive=1).prod() for piece in pieces])


@dataclass(frozen=True)
class SharedTokens:
    """What formats with the writer's own ids have in common, see `base.StepFormat`."""

    def begin(self, question: str, prompt: Tokens) -> Tokens:
        """The prompt. Raises: ValueError if it is empty."""
        del question
        if not prompt:
            raise ValueError("a scorer that shares the writer's tokens needs the prompt's token ids")
        return prompt

    def piece(self, step: Step, *, first: bool) -> Tokens:
        """The step's own tokens."""
        del first
        return step.tokens


@dataclass(frozen=True)
class JudgedTokens(SharedTokens):
    """See `base.StepFormat`; the writer's ids as they are. `scores` reads the outputs over pieces."""

    scores: Callable[[Sequence[Floats]], Floats]

    def read(self, pieces: Sequence[Floats]) -> Floats:
        """As `scores` says."""
        return self.scores(pieces)


@dataclass(frozen=True)
class SeparatedSteps:
    """See `base.StepFormat`; TRL's layout. `scores` reads the outputs over pieces."""

    scores: Callable[[Sequence[Floats]], Floats]
    tokenizer: Any
    bos: Tokens
    separator: Tokens
    after_question: Tokens

    def begin(self, question: str, prompt: Tokens) -> Tokens:
        """BOS, question, separator."""
        del prompt
        return self.bos + encode(self.tokenizer, question) + self.after_question

    def piece(self, step: Step, *, first: bool) -> Tokens:
        """The step without surrounding blank lines, then the separator."""
        del first
        return encode(self.tokenizer, step.text.strip()) + self.separator

    def read(self, pieces: Sequence[Floats]) -> Floats:
        """As `scores` says."""
        return self.scores(pieces)
