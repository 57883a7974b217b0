"""Format that uses a language model as a verifier: a step is as good as its least expected token.

A model that knows more than the writing model expects the right number where the writing model makes a mistake. The
score of a step is the smallest p(token) / max p over its tokens: 1 where every token is the verifier's most probable
one, near 0 where one is far from it. Dividing by the largest probability forgives the many ways to begin a sentence,
which a likelihood does not. A step's score does not depend on the scores of the steps before it, so fold with `min` or
`prod`, not `last`.

Any causal language model with the writing model's vocabulary will do; `bundled:verifier` is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.base import PrmAdapter, StepFormat
from reason.scorers.heads import NextTokenHead, RewardHead
from reason.scorers.probabilities import score_least_expected
from reason.scorers.step_formats import SharedTokenFormat


@dataclass(frozen=True, kw_only=True)
class ExpectationPrm(PrmAdapter):
    """Adapter for causal language models that share the writing model's tokens."""

    architectures: ClassVar[tuple[str, ...]] = (
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
    )
    head: ClassVar[RewardHead] = NextTokenHead()

    @property
    def shares_tokens(self) -> bool:
        """See `base.PrmAdapter`."""
        return True

    def build_format(self, tokenizer: PretrainedTokenizer) -> StepFormat:
        """See `base.PrmAdapter`."""
        return SharedTokenFormat(score_least_expected)
