"""Token Recycling (arXiv 2408.08696): after a token may come what the target last ranked highest after that token.

One matrix for everything, as published: the row of a token is overwritten whenever the target is seen after it, also
at draft nodes that were refused. The context is one token, so the state is the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.speculation.drafters.source import Ints, Successors
from decoding.speculation.interfaces import Branch, Feedback
from decoding.validation import is_count


@dataclass(eq=False)
class TokenRecycling:
    """Implements `Source`. Keeps `k` successors of every token id up to the largest seen, 4 bytes each.

    Rows never seen are empty (the published matrix starts with zeros, and so guesses token 0).
    """

    k: int = 8
    _successors_VK: npt.NDArray[np.int32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not is_count(self.k, at_least=1):
            raise ValueError(f"k must be an int >= 1, got {self.k!r}")
        self._successors_VK = np.full((0, self.k), -1, dtype=np.int32)

    @property
    def feedback_k(self) -> int:
        return self.k

    @property
    def has_probabilities(self) -> bool:
        return False

    def anchors(self, branches: Sequence[Branch]) -> Ints:
        return np.array([branch.tokens[-1] for branch in branches], dtype=np.int64)

    def successors(self, state: Ints) -> Successors:
        """The log-probabilities are minus the rank: they order the candidates and say no more."""
        ids_FK = np.full((len(state), self.k), -1, dtype=np.int64)
        seen_F = state < len(self._successors_VK)
        ids_FK[seen_F] = self._successors_VK[state[seen_F]]
        ranks_K = -np.arange(self.k, dtype=np.float32)
        logp_FK = np.where(ids_FK >= 0, ranks_K, np.float32(-np.inf))
        return Successors(ids_FK, logp_FK, np.zeros(len(state), dtype=np.int64))

    def descend(self, state: Ints, tokens_F: Ints) -> Ints:
        return tokens_F

    def observe(self, feedback: Sequence[Feedback]) -> None:
        if not feedback:
            return
        tokens_T = np.array([t for seen in feedback for t in (seen.branch.tokens[-1], *seen.draft.tokens)])
        ids_Tk: npt.NDArray[Any] = np.concatenate([seen.topk_ids for seen in feedback])[:, : self.k]
        self._reserve(int(tokens_T.max()) + 1)
        # Where a token was fed twice the later row counts; numpy promises no order for repeated indices.
        distinct, last_from_end = np.unique(tokens_T[::-1], return_index=True)
        self._successors_VK[distinct, : ids_Tk.shape[1]] = ids_Tk[len(tokens_T) - 1 - last_from_end]

    def _reserve(self, ids: int) -> None:
        known = len(self._successors_VK)
        if ids > known:
            larger = np.full((max(ids, 2 * known), self.k), -1, dtype=np.int32)
            larger[:known] = self._successors_VK
            self._successors_VK = larger
