r"""Format of Skywork-o1-Open-PRM-Qwen-2.5-1.5B and -7B: a scalar after every step.

Source: `skywork-o1-prm-inference`. Input is BOS, the problem and a newline, then the steps, each tokenised alone with
the id of the step token appended; the score is the logistic of a value head at each step token. The reference splits
solutions at newlines; Arbitrage (arXiv 2512.05033) uses the blank line as step token.

Append-only because the reference itself tokenises every step alone. Newlines inside a step would look like further
steps, so that where the step token is a single newline the step is put on one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.core import Tokens
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.base import PrmAdapter, StepFormat
from reason.scorers.heads import RewardHead, StepValueHead
from reason.scorers.probabilities import score_value
from reason.scorers.step_formats import TaggedTextFormat
from reason.scorers.text import encode_text


@dataclass(frozen=True, kw_only=True)
class SkyworkPrm(PrmAdapter):
    """Adapter for `Qwen2ForPrmModel`. `step_token` ends every step; the id of its last token is appended.

    Raises: ValueError for a step token that is not made of newlines.
    """

    step_token: str = "\n"

    architectures: ClassVar[tuple[str, ...]] = ("Qwen2ForPrmModel",)
    head: ClassVar[RewardHead] = StepValueHead()
    context_limit: ClassVar[int | None] = 4096

    def __post_init__(self) -> None:
        if not isinstance(self.step_token, str) or not self.step_token or self.step_token.strip("\n"):
            raise ValueError(f"step_token must be one or more newlines, got {self.step_token!r}")

    def build_format(self, tokenizer: PretrainedTokenizer) -> StepFormat:
        """See `base.PrmAdapter`."""

        def encode_question(question: str) -> Tokens:
            """BOS, if the tokenizer has one, the problem and a newline, tokenised as one text."""
            return encode_text(tokenizer, f"{tokenizer.bos_token or ''}{question}\n")

        tag = encode_text(tokenizer, self.step_token)[-1]
        single_line = self.step_token == "\n"
        return TaggedTextFormat(tokenizer, encode_question, (tag,), score_value, single_line)
