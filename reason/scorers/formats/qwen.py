r"""Format of Qwen2.5-Math-PRM-7B, -72B and Qwen2.5-Math-7B-PRM800K: a tag after every step, two classes at the tag.

Source: the model cards. Input is a chat of system, user (the question) and assistant (every step followed by
`<extra_0>`); the score is class 1 of a softmax over the two outputs at each `<extra_0>`. Trained on 4096 tokens.

Append-only because `<extra_0>` is a special token: tokenizers cut there before anything else, so that a step's tokens
depend on neither neighbour. The chat's closing tokens come after the last tag and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.core import Tokens
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.base import PrmAdapter, StepFormat
from reason.scorers.heads import ProcessRewardHead, RewardHead
from reason.scorers.probabilities import score_second_class
from reason.scorers.step_formats import TaggedTextFormat
from reason.scorers.text import encode_text, render_chat, token_id


@dataclass(frozen=True, kw_only=True)
class QwenPrm(PrmAdapter):
    """Adapter for `Qwen2ForProcessRewardModel`. `system` is the system prompt the models were trained with."""

    system: str = r"Please reason step by step, and put your final answer within \boxed{}."

    architectures: ClassVar[tuple[str, ...]] = ("Qwen2ForProcessRewardModel",)
    head: ClassVar[RewardHead] = ProcessRewardHead()
    context_limit: ClassVar[int | None] = 4096

    def build_format(self, tokenizer: PretrainedTokenizer) -> StepFormat:
        """See `base.PrmAdapter`."""

        def encode_question(question: str) -> Tokens:
            """The chat up to the beginning of the assistant's answer."""
            return encode_text(tokenizer, render_chat(tokenizer, [("system", self.system), ("user", question)]))

        tag = token_id(tokenizer, "<extra_0>")
        return TaggedTextFormat(tokenizer, encode_question, (tag,), score_second_class)
