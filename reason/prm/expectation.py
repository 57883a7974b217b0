"""A language model as a verifier: a step is as good as its least expected token.

A model that knows more than the writer expects the right number where the writer slipped. The score of a step is the
smallest p(token) / max p over its tokens: 1 where every token is the one the verifier would have written, near 0
where one is far from it. Dividing by the largest probability forgives the many ways to begin a sentence, which a
likelihood does not. A step's score says nothing of the steps before it, so fold with `min` or `prod`, not `last`.

Any causal language model with the writer's vocabulary will do; this is the bundled reward model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decoding.core import Tokens
from reason.prm.base import Floats, HeadKind, StepFormat
from reason.prm.token_classification import SharedTokens

if TYPE_CHECKING:
    from decoding.reader import PrefixReader


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Adapter for causal language models that share the writer's tokens."""

    architectures: ClassVar[tuple[str, ...]] = (
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
    )
    head: ClassVar[HeadKind] = "next_token"
    context_limit: ClassVar[int | None] = None
    shares_tokens: ClassVar[bool] = True

    def words(self, tokenizer: Any) -> Tokens:
        """None: every word counts."""
        del tokenizer
        return ()

    def format(self, tokenizer: Any) -> StepFormat:
        """See `base.Adapter`."""
        del tokenizer
        return ExpectedTokens()


@dataclass(frozen=True)
class ExpectedTokens(SharedTokens):
    """See `base.StepFormat`; outputs are those of `ExpectationReader`."""

    def read(self, pieces: Sequence[Floats]) -> Floats:
        """The smallest ratio of each piece.

        >>> ExpectedTokens().read([np.log([[1.0], [0.25]]), np.log([[0.5]])]).round(2).tolist()
        [0.25, 0.5]
        """
        return np.exp([piece.min() for piece in pieces])


@dataclass(frozen=True)
class ExpectationReader:
    """A `core.Reader` whose output after a token is log(p(token) / max p), from a reader of next-token logits.

    It reads one token more than asked: a token is expected at the position before it.
    """

    logits: PrefixReader

    async def read(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[Any]:
        """Float32 `[len(sequence) - start, 1]` for each; every start must be at least 1."""
        before = [start - 1 for start in starts]
        answers = await self.logits.read([tokens[:-1] for tokens in sequences], before)
        return [
            np.take_along_axis(rows, np.array(tokens[start:])[:, None], axis=1) - rows.max(axis=1, keepdims=True)
            for tokens, start, rows in zip(sequences, starts, answers, strict=True)
        ]

    def close(self) -> None:
        """Ends the reader underneath."""
        self.logits.close()
