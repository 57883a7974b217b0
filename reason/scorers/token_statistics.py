"""Statistics of given tokens under a language model, computed from its next-token logits.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoding.core import HeadOutputs, Tokens
from reason.scorers.heads import ClosableReader

Logits = npt.NDArray[np.float32]


def log_ratio(logits_TV: Logits, tokens: Tokens) -> Logits:
    """Returns log(p(token) / max p), `[T, 1]`, of T tokens that followed these logits.

    >>> log_ratio(np.log([[0.5, 0.25, 0.25]]), (1,)).round(3).tolist()
    [[-0.693]]
    """
    chosen = np.take_along_axis(logits_TV, np.array(tokens)[:, None], axis=1)
    ratio: Logits = chosen - logits_TV.max(axis=1, keepdims=True)
    return ratio


def token_statistics(logits_TV: Logits, tokens: Tokens) -> Logits:
    """Returns log p(token), log max p and entropy in nats, `[T, 3]`.

    >>> token_statistics(np.log([[0.5, 0.5]]), (1,)).round(3).tolist()
    [[-0.693, -0.693, 0.693]]
    """
    log_p = logits_TV - np.logaddexp.reduce(logits_TV, axis=1, keepdims=True)
    entropy = -(np.exp(log_p) * log_p).sum(axis=1)
    return np.stack([log_p[np.arange(len(tokens)), list(tokens)], log_p.max(axis=1), entropy], axis=1)


@dataclass(frozen=True)
class NextTokenReader:
    """A `core.Reader` whose outputs at a token are statistics of that token, from a reader of next-token logits.

    logits    the reader underneath, closed with this one
    measure   from the logits `[T, V]` before T tokens, and those tokens, to outputs `[T, num_outputs]`
    """

    logits: ClosableReader
    measure: Callable[[Logits, Tokens], Logits]

    async def encode(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[HeadOutputs]:
        """Returns float32 `[len(sequence) - start, num_outputs]` per sequence; every start must be at least 1."""
        # The logits of the token at i are the model's output at i - 1: read [start - 1, len - 1) for [start, len).
        previous = [start - 1 for start in starts]
        logits = await self.logits.encode([tokens[:-1] for tokens in sequences], previous)
        return [
            self.measure(rows, tokens[start:]) for tokens, start, rows in zip(sequences, starts, logits, strict=True)
        ]

    def close(self) -> None:
        """Closes the reader underneath."""
        self.logits.close()
