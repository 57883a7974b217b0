"""Token Recycling (arXiv 2408.08696): drafts the tokens that the target last ranked highest after the same token.

One matrix for all problems, as published: the row of a token is overwritten whenever the target is evaluated after it,
also at rejected draft nodes. The context is one token, so the state is the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from decoding.speculation.draft import MAX_DRAFT_SIZE
from decoding.speculation.drafters.source import Ints, NextTokens
from decoding.speculation.interfaces import Branch, Feedback
from decoding.validation import require_count


@dataclass(eq=False)
class TokenRecycling:
    """Implements `DraftSource`: stores `k` successors of every token id up to the largest one fed, 4 bytes each.

    Rows of tokens never fed are empty (the published matrix starts with zeros, and so drafts token 0).
    """

    k: int = 8
    _next_VK: npt.NDArray[np.int32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_count("k", self.k, at_least=1, at_most=MAX_DRAFT_SIZE)
        self._next_VK = np.full((0, self.k), -1, dtype=np.int32)

    @property
    def feedback_k(self) -> int:
        return self.k

    @property
    def size_bytes(self) -> int:
        """Memory of the matrix, in bytes."""
        return self._next_VK.nbytes

    @property
    def has_probabilities(self) -> bool:
        return False

    def root_states(self, branches: Sequence[Branch]) -> Ints:
        return np.array([branch.tokens[-1] for branch in branches], dtype=np.int64)

    def next_tokens(self, state: Ints) -> NextTokens:
        """Returns the stored successors; their log-probabilities are minus the rank, which only orders them."""
        ids_FK = np.full((len(state), self.k), -1, dtype=np.int64)
        # The matrix ends at the largest id fed: a draft may reach an id beyond it.
        is_stored_F = state < len(self._next_VK)
        ids_FK[is_stored_F] = self._next_VK[state[is_stored_F]]
        ranks_K = -np.arange(self.k, dtype=np.float32)
        logp_FK = np.where(ids_FK >= 0, ranks_K, np.float32(-np.inf))
        return NextTokens(ids_FK, logp_FK, np.zeros(len(state), dtype=np.int64))

    def advance(self, state: Ints, tokens_F: Ints) -> Ints:
        return tokens_F

    def observe(self, feedback: Sequence[Feedback]) -> None:
        if not feedback:
            return
        tokens_T = np.array([t for outcome in feedback for t in (outcome.branch.tokens[-1], *outcome.draft.tokens)])
        ids_Tk = np.concatenate([outcome.top_tokens()[0] for outcome in feedback])[:, : self.k]
        self._grow_matrix(int(tokens_T.max()) + 1)
        # Where a token was fed twice the later row counts; NumPy promises no order for repeated indices. `unique` gives
        # the first of equals, so it runs over the reversed rows.
        distinct, last_from_end = np.unique(tokens_T[::-1], return_index=True)
        self._next_VK[distinct, : ids_Tk.shape[1]] = ids_Tk[len(tokens_T) - 1 - last_from_end]

    def _grow_matrix(self, ids: int) -> None:
        rows = len(self._next_VK)
        if ids > rows:
            larger = np.full((max(ids, 2 * rows), self.k), -1, dtype=np.int32)  # doubled: one copy per doubling
            larger[:rows] = self._next_VK
            self._next_VK = larger
