r"""Format of math-shepherd-mistral-7b-prm and models trained like it: after a tag the next token is + or -.

Source: the model card and the data card. Input is the question, a space, and the steps, each ending in ` ки` and
separated by newlines; the score is the softmax share of "+" against "-" in the language model's own logits at the
tag. With the published tokenizer the tag is id 12902 and the label tokens, looked up as in "+ -", are 648 and 387.
Mistral's window is 4096 tokens; within it, attention is plain.

Append-only because a newline, never part of a longer token, follows every tag: it opens the next piece. Steps are
put on one line, as in the training data. A sentence-piece tokenizer marks the beginning of a text, so that pieces are
encoded behind the text before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from decoding.core import Tokens
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.base import Floats, PrmAdapter, StepFormat
from reason.scorers.heads import LabelTokensHead, RewardHead
from reason.scorers.probabilities import score_first_class
from reason.scorers.text import encode_after, encode_text, join_lines
from search.tree import Step


@dataclass(frozen=True, kw_only=True)
class MathShepherd(PrmAdapter):
    """Adapter for causal models that answer a step tag with one of two label tokens.

    Raises: ValueError for an empty tag or equal labels.
    """

    tag: str = "ки"
    right: str = "+"
    wrong: str = "-"

    architectures: ClassVar[tuple[str, ...]] = ("MistralForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM")
    head: ClassVar[RewardHead] = LabelTokensHead()
    context_limit: ClassVar[int | None] = 4096

    def __post_init__(self) -> None:
        for name in ("tag", "right", "wrong"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value or value != value.strip():
                raise ValueError(f"{name} must be a word without spaces around it, got {value!r}")
        if self.right == self.wrong:
            raise ValueError(f"right and wrong must be two words, both are {self.right!r}")

    def label_token_ids(self, tokenizer: PretrainedTokenizer) -> Tokens:
        """Returns the ids of right and wrong as separate words of a text. Raises: ValueError if either is several
        tokens."""
        ids = encode_text(tokenizer, f"{self.right} {self.wrong}")
        if len(ids) != 2:
            raise ValueError(f"'{self.right} {self.wrong}' must be two tokens of this tokenizer, it is {len(ids)}")
        return ids

    def build_format(self, tokenizer: PretrainedTokenizer) -> StepFormat:
        """See `base.PrmAdapter`. Raises: ValueError if the tag is several tokens."""
        if len(encode_after(tokenizer, "a", f" {self.tag}")) != 1:
            raise ValueError(f"the step tag {self.tag!r} must be one token of this tokenizer")
        return ShepherdFormat(tokenizer, self.tag)


@dataclass(frozen=True)
class ShepherdFormat:
    """Lines that end in a tag, see `base.StepFormat`."""

    tokenizer: PretrainedTokenizer
    tag: str

    def encode_prompt(self, question: str, prompt: Tokens) -> Tokens:
        """BOS, if the tokenizer has one, and the question."""
        del prompt
        bos = self.tokenizer.bos_token_id
        return (() if bos is None else (bos,)) + encode_text(self.tokenizer, join_lines(question))

    def encode_step(self, step: Step, *, first: bool) -> Tokens:
        """The joint with the text before it (a space, or a newline after a tag), the step, a space, the tag."""
        text = f"{join_lines(step.text)} {self.tag}"
        if first:
            return encode_after(self.tokenizer, "?", f" {text}")
        return encode_after(self.tokenizer, f"? {self.tag}", f"\n{text}")

    def score_steps(self, outputs: Sequence[Floats]) -> Floats:
        """The share of "right"."""
        return score_first_class(outputs)
