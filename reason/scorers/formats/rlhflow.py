r"""Format of RLHFlow's Llama3.1-8B-PRM-Deepseek-Data and -Mistral-Data: a chat that answers + after every step.

Source: RLHFlow's `prm_evaluate.py`. Each step is a user turn (the first one: question, space, step) and each answer
an assistant turn `+`; the score is the softmax share of "+" against "-" (ids 10 and 12 of Llama 3) in the language
model's own logits one position before that answer, which is the last token of the assistant's header.

Append-only because the score is read before the answer is: a piece is one user turn and the header, and the `+` with
its end-of-turn mark opens the next piece. The chat template must render every turn alike; loading checks that it does.
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
from reason.scorers.text import encode_text, render_chat, single_token_id
from search.tree import Step

PROBE = "Wq7?"  # in place of a question; a text that no template contains


@dataclass(frozen=True, kw_only=True)
class RlhflowPrm(PrmAdapter):
    """Adapter for chat models that judge every turn."""

    architectures: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
    head: ClassVar[RewardHead] = LabelTokensHead()

    def label_token_ids(self, tokenizer: PretrainedTokenizer) -> Tokens:
        """Returns the ids of "+" and "-" at the beginning of an answer. Raises: ValueError if either is several
        tokens."""
        return single_token_id(tokenizer, "+"), single_token_id(tokenizer, "-")

    def build_format(self, tokenizer: PretrainedTokenizer) -> StepFormat:
        """See `base.PrmAdapter`. Raises: ValueError for a chat template whose turns depend on each other."""
        opening, probe, _ = render_chat(tokenizer, [("user", PROBE)]).partition(PROBE)
        step_format = RlhflowFormat(tokenizer, opening)
        turns = [("user", f"{PROBE} B"), ("assistant", "+"), ("user", "C"), ("assistant", "+"), ("user", "D")]
        pieces = [step_format.encode_step(Step((0,), text), first=text == "B") for text in "BCD"]
        joined = step_format.encode_prompt(PROBE, ()) + tuple(token for piece in pieces for token in piece)
        if not probe or joined != encode_text(tokenizer, render_chat(tokenizer, turns)):
            raise ValueError("this chat template does not write every turn alike, so steps cannot be scored one by one")
        return step_format


@dataclass(frozen=True)
class RlhflowFormat:
    """User turns with one step each, see `base.StepFormat`; `opening` is the template's text before the first one."""

    tokenizer: PretrainedTokenizer
    opening: str

    def encode_prompt(self, question: str, prompt: Tokens) -> Tokens:
        """The first user turn up to the end of the question."""
        del prompt
        return encode_text(self.tokenizer, self.opening + question.strip())

    def encode_step(self, step: Step, *, first: bool) -> Tokens:
        """The answer to the previous turn, if any, the (rest of the) user turn, and the assistant's header."""
        text = step.text.strip()
        if first:
            start, turns = len(self.opening + PROBE), [("user", f"{PROBE} {text}")]
        else:
            previous = [("user", PROBE)]
            start = len(render_chat(self.tokenizer, previous))
            turns = [*previous, ("assistant", "+"), ("user", text)]
        return encode_text(self.tokenizer, render_chat(self.tokenizer, turns)[start:])

    def score_steps(self, outputs: Sequence[Floats]) -> Floats:
        """The share of "+"."""
        return score_first_class(outputs)
