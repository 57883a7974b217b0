r"""Format of token classifiers: class 1 is "right".

Which tokens they judge, chosen by `judges`:

steps   The last token of every step, as trained with TRL: a step's score is the share of class 1 there.
tokens  Every token, as the bundled reward model does: the probability that it is right if all before are. A step's
        score is the product of these over the tokens up to its end: the probability that everything so far is right.

What they read, chosen by `reads`:

tokens  The model shares the writing model's vocabulary: it reads the ids of prompt and steps as they are. A step's last
        token is its delimiter or the end of the text.
text    TRL's `PRMTrainer` (HuggingFaceH4/Qwen2.5-Math-1.5B-Instruct-PRM-0.2 and -7B-): BOS if there is one, the
        question, then every step followed by the separator, each tokenised alone; the label stands at the last token of
        the separator. The trainer puts nothing between question and first step; the published model cards put a
        separator there, and so does this format (`after_question`).

Append-only in both: nothing is tokenised across a seam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from decoding.core import Tokens
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.base import PrmAdapter, StepFormat
from reason.scorers.heads import RewardHead, TokenClassesHead
from reason.scorers.probabilities import score_every_token, score_second_class
from reason.scorers.step_formats import SharedTokenFormat, TaggedTextFormat
from reason.scorers.text import encode_text


@dataclass(frozen=True, kw_only=True)
class TokenClassifier(PrmAdapter):
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
    head: ClassVar[RewardHead] = TokenClassesHead()

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
        """See `base.PrmAdapter`."""
        return self.reads == "tokens"

    def build_format(self, tokenizer: PretrainedTokenizer) -> StepFormat:
        """See `base.PrmAdapter`."""
        score_outputs = score_every_token if self.judges == "tokens" else score_second_class
        if self.shares_tokens:
            return SharedTokenFormat(score_outputs)
        bos = () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)
        separator, after_question = encode_text(tokenizer, self.separator), encode_text(tokenizer, self.after_question)

        def encode_question(question: str) -> Tokens:
            """BOS, question, separator, each tokenised alone."""
            return bos + encode_text(tokenizer, question) + after_question

        return TaggedTextFormat(tokenizer, encode_question, separator, score_outputs)
