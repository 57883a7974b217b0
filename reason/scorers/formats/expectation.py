"""A language model as a verifier: a step is as good as its least expected token.

A model that knows more than the writer expects the right number where the writer slipped. The score of a step is the
smallest p(token) / max p over its tokens: 1 where every token is the one the verifier would have written, near 0
where one is far from it. Dividing by the largest probability forgives the many ways to begin a sentence, which a
likelihood does not. A step's score says nothing of the steps before it, so fold with `min` or `prod`, not `last`.

Any causal language model with the writer's vocabulary will do; `bundled:verifier` is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from decoding.core import Tokens
from reason.scorers.base import Floats, HeadKind, StepFormat
from reason.scorers.formats.token_classification import SharedTokens

if TYPE_CHECKING:
    from decoding.prefill import PrefixReader

Logits = npt.NDArray[np.float32]


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


def log_ratio(logits: Logits, tokens: Tokens) -> Logits:
    """log(p(token) / max p), `[T, 1]`, of T tokens that followed `[T, V]` logits.

    >>> log_ratio(np.log([[0.5, 0.25, 0.25]]), (1,)).round(3).tolist()
    [[-0.693]]
    """
    ratio: Logits = np.take_along_axis(logits, np.array(tokens)[:, None], axis=1) - logits.max(axis=1, keepdims=True)
    return ratio


def statistics(logits: Logits, tokens: Tokens) -> Logits:
    """log p(token), log max p and entropy in nats, `[T, 3]`.

    >>> statistics(np.log([[0.5, 0.5]]), (1,)).round(3).tolist()
    [[-0.693, -0.693, 0.693]]
    """
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    entropy = -(np.exp(log_p) * log_p).sum(axis=1)
    return np.stack([log_p[np.arange(len(tokens)), list(tokens)], log_p.max(axis=1), entropy], axis=1)


@dataclass(frozen=True)
class ExpectationReader:
    """A `core.Reader` whose output after a token tells how it was expected, from a reader of next-token logits.

    It reads one token more than asked: a token is expected at the position before it.

    measure   from the logits `[T, V]` before T tokens, and those tokens, to outputs `[T, outputs]`
    """

    logits: PrefixReader
    measure: Callable[[Logits, Tokens], Logits] = log_ratio

    async def read(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[Any]:
        """Float32 `[len(sequence) - start, outputs]` for each; every start must be at least 1."""
        before = [start - 1 for start in starts]
        answers = await self.logits.read([tokens[:-1] for tokens in sequences], before)
        return [
            self.measure(rows, tokens[start:]) for tokens, start, rows in zip(sequences, starts, answers, strict=True)
        ]

    def close(self) -> None:
        """Ends the reader underneath."""
        self.logits.close()
