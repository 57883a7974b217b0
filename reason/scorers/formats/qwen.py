r"""Qwen2.5-Math-PRM-7B, -72B and Qwen2.5-Math-7B-PRM800K: a tag after every step, two classes at the tag.

Source: the model cards. Input is a chat of system, user (the question) and assistant (every step followed by
`<extra_0>`); the score is class 1 of a softmax over the two outputs at each `<extra_0>`. Trained on 4096 tokens.

Append-only because `<extra_0>` is a special token: tokenizers cut there before anything else, so a step's tokens
depend on neither neighbour. The chat's closing tokens come after the last tag and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from decoding.core import Tokens
from reason.scorers.base import Floats, HeadKind, StepFormat
from reason.scorers.probabilities import last, pair_probability
from reason.scorers.text import encode, render_chat, token_id
from search.tree import Step


@dataclass(frozen=True, kw_only=True)
class QwenPrm:
    """Adapter for `Qwen2ForProcessRewardModel`. `system` is the system prompt the models were trained with."""

    system: str = r"Please reason step by step, and put your final answer within \boxed{}."

    architectures: ClassVar[tuple[str, ...]] = ("Qwen2ForProcessRewardModel",)
    head: ClassVar[HeadKind] = "process_reward"
    context_limit: ClassVar[int | None] = 4096
    shares_tokens: ClassVar[bool] = False

    def words(self, tokenizer: Any) -> Tokens:
        """None: the head has classes of its own."""
        del tokenizer
        return ()

    def format(self, tokenizer: Any) -> StepFormat:
        """See `base.Adapter`."""
        return QwenFormat(tokenizer, self.system, token_id(tokenizer, "<extra_0>"))


@dataclass(frozen=True)
class QwenFormat:
    """See `base.StepFormat`; `tag` is the id of `<extra_0>`."""

    tokenizer: Any
    system: str
    tag: int

    def begin(self, question: str, prompt: Tokens) -> Tokens:
        """The chat up to the assistant's first word."""
        del prompt
        return encode(self.tokenizer, render_chat(self.tokenizer, [("system", self.system), ("user", question)]))

    def piece(self, step: Step, *, first: bool) -> Tokens:
        """The step without surrounding blank lines, then the tag."""
        del first
        return (*encode(self.tokenizer, step.text.strip()), self.tag)

    def read(self, pieces: Sequence[Floats]) -> Floats:
        """The share of class 1."""
        return pair_probability(last(pieces), positive=1)
