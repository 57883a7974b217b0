"""Format of outcome reward models, `...ForSequenceClassification`: the solution as a chat, judged at its last token.

Question and solution are the two turns of a conversation in the model's own chat template; the head reads the last
token of it, as transformers' classes do for a text without padding. With one label the score is its logistic
(Bradley-Terry rewards, Skywork-Reward and others), with two the share of class 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.core import Tokens
from decoding.validation import require_positive
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.base import Floats, PrmAdapter
from reason.scorers.heads import RewardHead, SequenceClassesHead
from reason.scorers.probabilities import pair_probability, scalar_probability
from reason.scorers.text import encode_text


@dataclass(frozen=True, kw_only=True)
class OutcomeReward(PrmAdapter):
    """Adapter for `...ForSequenceClassification` with one label or two.

    temperature  what logits are divided by: rewards of many models are far apart, and their logistic is 0 or 1
    """

    temperature: float = 1.0

    architectures: ClassVar[tuple[str, ...]] = (
        "Qwen2ForSequenceClassification",
        "Qwen3ForSequenceClassification",
        "LlamaForSequenceClassification",
        "MistralForSequenceClassification",
    )
    head: ClassVar[RewardHead] = SequenceClassesHead()

    def __post_init__(self) -> None:
        require_positive("temperature", self.temperature)

    def encode_solution(self, tokenizer: PretrainedTokenizer, question: str, solution: str) -> Tokens:
        """Returns the ids of the conversation. Raises: ValueError if the tokenizer has no chat template."""
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("an outcome reward model reads a chat, but its tokenizer brings no chat template")
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": solution.strip()}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)
        assert isinstance(text, str)
        # as it is, also where the template puts a line break behind the last turn: published scores are read there
        return encode_text(tokenizer, text)

    def score_output(self, outputs: Floats) -> float:
        """Returns the score in [0, 1] of the outputs at the last token, `[1 or 2]`."""
        logits = outputs[None] / self.temperature
        scores = scalar_probability(logits) if logits.shape[1] == 1 else pair_probability(logits, positive=1)
        return float(scores[0])
