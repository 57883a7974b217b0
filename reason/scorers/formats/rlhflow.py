r"""RLHFlow's Llama3.1-8B-PRM-Deepseek-Data and -Mistral-Data: a chat in which the assistant says + after every step.

Source: RLHFlow's `prm_evaluate.py`. Each step is a user turn (the first one: question, space, step) and each answer
an assistant turn `+`; the score is the softmax share of "+" against "-" (ids 10 and 12 of Llama 3) in the language
model's own logits one position before that answer, which is the last token of the assistant's header.

Append-only because the score is read before the answer is: a piece is one user turn and the header, and the `+` with
its end-of-turn mark opens the next piece. The chat template must write every turn alike; loading checks that it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from decoding.core import Tokens
from reason.scorers.base import Floats, HeadKind, StepFormat
from reason.scorers.probabilities import last, pair_probability
from reason.scorers.text import encode, only_token, render_chat
from search.tree import Step

PROBE = "Wq7?"  # stands for a question; a text no template writes by itself


@dataclass(frozen=True, kw_only=True)
class RlhflowPrm:
    """Adapter for chat models that judge every turn."""

    architectures: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
    head: ClassVar[HeadKind] = "two_words"
    context_limit: ClassVar[int | None] = None
    shares_tokens: ClassVar[bool] = False

    def words(self, tokenizer: Any) -> Tokens:
        """The ids of "+" and "-" at the beginning of an answer. Raises: ValueError if they are not one token each."""
        return only_token(tokenizer, "+"), only_token(tokenizer, "-")

    def format(self, tokenizer: Any) -> StepFormat:
        """See `base.Adapter`. Raises: ValueError for a chat template whose turns depend on each other."""
        before, found, _ = render_chat(tokenizer, [("user", PROBE)]).partition(PROBE)
        form = RlhflowFormat(tokenizer, before)
        turns = [("user", f"{PROBE} B"), ("assistant", "+"), ("user", "C"), ("assistant", "+"), ("user", "D")]
        pieces = [form.piece(Step((0,), text), first=text == "B") for text in "BCD"]
        parts = form.begin(PROBE, ()) + tuple(token for piece in pieces for token in piece)
        if not found or parts != encode(tokenizer, render_chat(tokenizer, turns)):
            raise ValueError("this chat template does not write every turn alike, so steps cannot be scored one by one")
        return form


@dataclass(frozen=True)
class RlhflowFormat:
    """See `base.StepFormat`; `opening` is what the template writes before the first user's words."""

    tokenizer: Any
    opening: str

    def begin(self, question: str, prompt: Tokens) -> Tokens:
        """The first user turn up to the end of the question."""
        del prompt
        return encode(self.tokenizer, self.opening + question.strip())

    def piece(self, step: Step, *, first: bool) -> Tokens:
        """The rest of a user turn, and the assistant's header; before that the answer to the previous turn."""
        text = step.text.strip()
        if first:
            known, turns = len(self.opening + PROBE), [("user", f"{PROBE} {text}")]
        else:
            asked = [("user", PROBE)]
            known = len(render_chat(self.tokenizer, asked))
            turns = [*asked, ("assistant", "+"), ("user", text)]
        return encode(self.tokenizer, render_chat(self.tokenizer, turns)[known:])

    def read(self, pieces: Sequence[Floats]) -> Floats:
        """The share of "+"."""
        return pair_probability(last(pieces), positive=0)
