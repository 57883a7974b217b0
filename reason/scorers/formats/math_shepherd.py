r"""math-shepherd-mistral-7b-prm and models trained like it: the next word after a tag is + or -.

Source: the model card and the data card. Input is the question, a space, and the steps, each ending in ` ки` and
separated by newlines; the score is the softmax share of "+" against "-" in the language model's own logits at the
tag. With the published tokenizer the tag is id 12902 and the words, looked up as in "+ -", are 648 and 387.
Mistral's window is 4096 tokens; within it, attention is plain.

Append-only because a newline, never part of a longer token, follows every tag: it opens the next piece. Steps are
put on one line, as in the training data. A sentence-piece tokenizer marks a text's beginning, so pieces are encoded
behind what stands before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from decoding.core import Tokens
from reason.scorers.base import Floats, HeadKind, StepFormat
from reason.scorers.probabilities import last, pair_probability
from reason.scorers.text import encode, encode_after, one_line
from search.tree import Step


@dataclass(frozen=True, kw_only=True)
class MathShepherd:
    """Adapter for causal models that answer a step tag with one of two words.

    Raises: ValueError for an empty tag or words that are not two.
    """

    tag: str = "ки"
    right: str = "+"
    wrong: str = "-"

    architectures: ClassVar[tuple[str, ...]] = ("MistralForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM")
    head: ClassVar[HeadKind] = "two_words"
    context_limit: ClassVar[int | None] = 4096
    shares_tokens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("tag", "right", "wrong"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value or value != value.strip():
                raise ValueError(f"{name} must be a word without spaces around it, got {value!r}")
        if self.right == self.wrong:
            raise ValueError(f"right and wrong must be two words, both are {self.right!r}")

    def words(self, tokenizer: Any) -> Tokens:
        """The ids of right and wrong as separate words of a text. Raises: ValueError if they are not one token each."""
        ids = encode(tokenizer, f"{self.right} {self.wrong}")
        if len(ids) != 2:
            raise ValueError(f"'{self.right} {self.wrong}' must be two tokens of this tokenizer, it is {len(ids)}")
        return ids

    def format(self, tokenizer: Any) -> StepFormat:
        """See `base.Adapter`. Raises: ValueError if the tokenizer breaks the tag up."""
        if len(encode_after(tokenizer, "a", f" {self.tag}")) != 1:
            raise ValueError(f"the step tag {self.tag!r} must be one token of this tokenizer")
        return ShepherdFormat(tokenizer, self.tag)


@dataclass(frozen=True)
class ShepherdFormat:
    """See `base.StepFormat`."""

    tokenizer: Any
    tag: str

    def begin(self, question: str, prompt: Tokens) -> Tokens:
        """BOS, if the tokenizer has one, and the question."""
        del prompt
        bos = self.tokenizer.bos_token_id
        return (() if bos is None else (bos,)) + encode(self.tokenizer, one_line(question))

    def piece(self, step: Step, *, first: bool) -> Tokens:
        """What joins the step to the text before it (a space, or a newline after a tag), the step, a space, the tag."""
        text = f"{one_line(step.text)} {self.tag}"
        if first:
            return encode_after(self.tokenizer, "?", f" {text}")
        return encode_after(self.tokenizer, f"? {self.tag}", f"\n{text}")

    def read(self, pieces: Sequence[Floats]) -> Floats:
        """The share of "right"."""
        return pair_probability(last(pieces), positive=0)
