r"""Skywork-o1-Open-PRM-Qwen-2.5-1.5B and -7B: a scalar after every step.

Source: `skywork-o1-prm-inference`. Input is BOS, the problem and a newline, then the steps, each tokenised by
itself with the id of the step token appended; the score is the logistic of a value head at each step token. The
reference splits solutions at newlines; Arbitrage (arXiv 2512.05033) uses the blank line as step token.

Append-only because the reference itself tokenises every step alone. Newlines inside a step would look like further
steps, so where the step token is a single newline the step is put on one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from decoding.core import Tokens
from reason.scorers.base import Floats, HeadKind, StepFormat
from reason.scorers.probabilities import last, scalar_probability
from reason.scorers.text import encode, one_line
from search.tree import Step


@dataclass(frozen=True, kw_only=True)
class SkyworkPrm:
    """Adapter for `Qwen2ForPrmModel`. `step_token` ends every step; its last token's id is appended.

    Raises: ValueError for a step token that is not made of newlines.
    """

    step_token: str = "\n"

    architectures: ClassVar[tuple[str, ...]] = ("Qwen2ForPrmModel",)
    head: ClassVar[HeadKind] = "step_value"
    context_limit: ClassVar[int | None] = 4096
    shares_tokens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.step_token, str) or not self.step_token or self.step_token.strip("\n"):
            raise ValueError(f"step_token must be one or more newlines, got {self.step_token!r}")

    def words(self, tokenizer: Any) -> Tokens:
        """None: the head has one value of its own."""
        del tokenizer
        return ()

    def format(self, tokenizer: Any) -> StepFormat:
        """See `base.Adapter`."""
        return SkyworkFormat(tokenizer, encode(tokenizer, self.step_token)[-1], flat=self.step_token == "\n")


@dataclass(frozen=True)
class SkyworkFormat:
    """See `base.StepFormat`; `tag` is the step token's id, `flat` puts a step on one line."""

    tokenizer: Any
    tag: int
    flat: bool

    def begin(self, question: str, prompt: Tokens) -> Tokens:
        """BOS, if the tokenizer has one, the problem and a newline, tokenised in one go."""
        del prompt
        return encode(self.tokenizer, f"{self.tokenizer.bos_token or ''}{question}\n")

    def piece(self, step: Step, *, first: bool) -> Tokens:
        """The step, then the step token."""
        del first
        text = one_line(step.text) if self.flat else step.text.strip()
        return (*encode(self.tokenizer, text), self.tag)

    def read(self, pieces: Sequence[Floats]) -> Floats:
        """The logistic of the value."""
        return scalar_probability(last(pieces))
