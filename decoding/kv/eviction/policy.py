"""Chooses which KV of a long text a branch keeps: what eviction policies share.

After the question a branch has at most `keep_tokens + every` tokens of KV. Where it has computed a multiple of `every`
tokens after the question, more than `keep_tokens`, it evicts all but `keep_tokens` of them: the last `every` stay, and
of the others those with the highest scores. Such a length is a border. What a token sees follows from its position and
the text before it, not from how many tokens a round feeds, so speculation and preemption do not change the text.

Lossy: the text is not distributed as the target model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from decoding.kv.eviction.history import AttentionHistory
from decoding.validation import require_count

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EvictionPolicy:
    """Base of the policies, which score tokens.

    keep_tokens  tokens after the question whose KV a branch keeps at a border
    every        tokens from one border to the next; the last `every` tokens are never evicted
    threshold    attention above which a token counts as attended to, for a policy that needs attention

    Raises: ValueError naming the setting.
    """

    keep_tokens: int = 1024
    every: int = 64
    needs_attention: ClassVar[bool] = False
    threshold = 0.0

    def __post_init__(self) -> None:
        require_count("every", self.every, at_least=1)
        require_count("keep_tokens", self.keep_tokens, at_least=self.every)

    def find_border(self, num_tokens: int) -> int:
        """Returns the first border after `num_tokens` tokens, both counted from the end of the question.

        >>> policy = EvictionPolicy(keep_tokens=10, every=4)
        >>> [policy.find_border(num_tokens) for num_tokens in (0, 11, 12, 15, 16)]
        [12, 12, 16, 16, 20]
        """
        least = max(num_tokens, self.keep_tokens)
        return (least // self.every + 1) * self.every

    def choose_kept(self, positions: Ints, tokens: Ints, history: AttentionHistory | None = None) -> Bools:
        """Returns which tokens are kept, bool `[K]`; of equal scores the later one.

        positions  `[K]`, ascending: tokens that still have KV, counted from the end of the question
        tokens     the text from the end of the question to the border
        history    of these positions, where the policy needs attention
        """
        is_kept: Bools = positions >= len(tokens) - self.every
        num_more = self.keep_tokens - int(is_kept.sum())
        older = np.flatnonzero(~is_kept)
        if num_more > 0:
            scores = self.score_tokens(positions[older], tokens, None if history is None else history.select(older))
            is_kept[older[np.argsort(scores, kind="stable")[-num_more:]]] = True
        return is_kept

    def score_tokens(self, positions: Ints, tokens: Ints, history: AttentionHistory | None = None) -> Scores:
        """Returns the score of each position, `[K]`; the arguments are those of `choose_kept`."""
        raise NotImplementedError
