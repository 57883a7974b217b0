"""Prompt lookup: copies the continuation of an earlier occurrence of the last few tokens in the same text.

The source of a copy is the most recent earlier occurrence of the longest possible n-gram. The texts of a round are a
matrix that is scanned anew in each round: that costs less than an index of n-grams, which is slow to build for a new
branch and takes some hundred bytes per token.

Shapes: B branches, L longest text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from decoding.speculation.draft import MAX_DRAFT_SIZE
from decoding.speculation.drafters.source import TRUST_LEVELS, Floats, Ints, NextTokens
from decoding.speculation.interfaces import Branch, Feedback
from decoding.validation import require_count

Ids = npt.NDArray[np.int32]


class TokenMatrix:
    """The tokens of a round's branches, one row each, padded with -1; a round adds only the new tokens."""

    def __init__(self) -> None:
        self._ids_BL: Ids = np.empty((0, 256), dtype=np.int32)
        self._requests: list[int] = []
        self.lengths_B: Ints = np.empty(0, dtype=np.int64)

    @property
    def num_texts(self) -> int:
        """Number of rows of the matrix."""
        return len(self._requests)

    def update_texts(self, branches: Sequence[Branch]) -> Ids:
        """Returns the texts of exactly these branches, valid until the next call. *Mutates*."""
        requests = [branch.request_id for branch in branches]
        lengths_B = np.array([len(branch.tokens) for branch in branches], dtype=np.int64)
        longest = int(lengths_B.max(initial=1))
        if requests != self._requests or longest > self._ids_BL.shape[1]:
            self._rearrange_rows(requests, longest)
        # A shorter text is another one under a reused id: written from the start; stale ids stay beyond its length.
        self.lengths_B[lengths_B < self.lengths_B] = 0
        new_tokens = [branch.tokens[n:] for branch, n in zip(branches, self.lengths_B.tolist(), strict=True)]
        counts_B = lengths_B - self.lengths_B
        ends_B = np.cumsum(counts_B)
        # Columns [old length, new length) of each row, in one assignment: new token i of all goes to the column i minus
        # the offset of its branch, whose last new token ends at its length.
        columns = np.arange(int(counts_B.sum())) - np.repeat(ends_B - lengths_B, counts_B)
        self._ids_BL[np.repeat(np.arange(len(branches)), counts_B), columns] = list(chain.from_iterable(new_tokens))
        self.lengths_B = lengths_B
        return self._ids_BL[:, :longest]

    def _rearrange_rows(self, requests: list[int], longest: int) -> None:
        """Moves the rows of continuing requests, drops the others and widens the matrix. *Mutates*."""
        old = {request: row for row, request in enumerate(self._requests)}
        moved_rows = [(new, old[request]) for new, request in enumerate(requests) if request in old]
        width = self._ids_BL.shape[1]
        ids_BL = np.full((len(requests), width if longest <= width else 2 * longest), -1, dtype=np.int32)
        lengths_B = np.zeros(len(requests), dtype=np.int64)
        if moved_rows:
            new_rows, old_rows = np.array(moved_rows).T
            ids_BL[new_rows, :width] = self._ids_BL[old_rows]
            lengths_B[new_rows] = self.lengths_B[old_rows]
        self._ids_BL, self.lengths_B, self._requests = ids_BL, lengths_B, requests


def find_latest_matches(ids_BL: Ids, lengths_B: Ints, *, max_ngram: int, min_ngram: int) -> Ints:
    """Returns for each text where the latest earlier occurrence of its longest last n-gram ends; -1 for none.

    >>> text = np.array([[1, 2, 3, 7, 2, 3, 8, 1, 2, 3]], dtype=np.int32)
    >>> [find_latest_matches(text, np.array([10]), max_ngram=n, min_ngram=1).tolist() for n in (3, 2)]
    [[3], [6]]
    """
    rows_B = np.arange(len(ids_BL))
    match_B = np.full(len(ids_BL), -1, dtype=np.int64)
    # Of the last n tokens, by where they end: before the text's end, which matches itself. Columns beyond it may hold
    # tokens of a longer, earlier text.
    matches_BL = np.arange(ids_BL.shape[1]) < lengths_B[:, None] - 1
    for n in range(1, max_ngram + 1):
        # The n-th token from the end; -2 where the text is shorter, which equals no id and no padding (-1).
        token_B = np.where(lengths_B >= n, ids_BL[rows_B, np.maximum(lengths_B - n, 0)], -2)
        # Compared n - 1 columns before the end of the run, which is where `matches_BL` has it.
        same_BL = ids_BL[:, : ids_BL.shape[1] - n + 1] == token_B[:, None]
        matches_BL[:, : n - 1] = False  # no run of n tokens ends here
        matches_BL[:, n - 1 :] &= same_BL
        # argmax takes the first True: of the reversed columns, the latest occurrence. 0 also means none: checked below.
        last_B = ids_BL.shape[1] - matches_BL[:, ::-1].argmax(axis=1)
        matches_B = matches_BL[rows_B, last_B - 1]
        if not matches_B.any():
            break  # an n-gram without a match has no longer one with a match
        if n >= min_ngram:
            match_B = np.where(matches_B, last_B, match_B)
    return match_B


def count_matching_tokens(ids_BL: Ids, lengths_B: Ints, match_B: Ints) -> Ints:
    """Returns the number of tokens before the match that equal those at the end, up to `TRUST_LEVELS`; 0 for no match.

    >>> count_matching_tokens(np.array([[1, 2, 3, 7, 1, 2, 3]], dtype=np.int32), np.array([7]), np.array([3])).tolist()
    [3]
    """
    back = np.arange(1, TRUST_LEVELS + 1)
    rows = np.arange(len(ids_BL))[:, None]
    before, end = (np.maximum(position_B[:, None] - back, 0) for position_B in (match_B, lengths_B))
    same = (ids_BL[rows, before] == ids_BL[rows, end]) & (match_B[:, None] >= back)
    # Accumulated: equal tokens count only as far as no unequal one is nearer to the end.
    matching_B: Ints = np.logical_and.accumulate(same, axis=1).sum(axis=1)
    return matching_B


@dataclass(eq=False)
class PromptLookup:
    """Implements `DraftSource`: copies after a match of `min_ngram` to `max_ngram` tokens.

    State, one row per context: the branch's index in the round; the position copied from, -1 for none; the number of
    equal tokens so far.
    """

    max_ngram: int = 3
    min_ngram: int = 1
    _texts: TokenMatrix = field(init=False, repr=False, default_factory=TokenMatrix)
    _ids_BL: Ids = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("min_ngram", "max_ngram"):
            require_count(name, getattr(self, name), at_least=1, at_most=MAX_DRAFT_SIZE)
        if self.max_ngram < self.min_ngram:
            raise ValueError(f"max_ngram must be at least min_ngram={self.min_ngram}, got {self.max_ngram}")

    @property
    def num_texts(self) -> int:
        """Number of stored texts: those of the last round."""
        return self._texts.num_texts

    @property
    def feedback_k(self) -> int:
        return 0

    @property
    def has_probabilities(self) -> bool:
        return False

    def root_states(self, branches: Sequence[Branch]) -> Ints:
        self._ids_BL = self._texts.update_texts(branches)
        lengths_B = self._texts.lengths_B
        match_B = find_latest_matches(self._ids_BL, lengths_B, max_ngram=self.max_ngram, min_ngram=self.min_ngram)
        return np.stack(
            [np.arange(len(branches)), match_B, count_matching_tokens(self._ids_BL, lengths_B, match_B)], axis=1
        )

    def next_tokens(self, state: Ints) -> NextTokens:
        ids_FK = self._copied_tokens(state)[:, None]
        logp_FK: Floats = np.where(ids_FK >= 0, np.float32(0), np.float32(-np.inf))
        return NextTokens(ids_FK, logp_FK, np.clip(state[:, 2] - 1, 0, TRUST_LEVELS - 1))

    def advance(self, state: Ints, tokens_F: Ints) -> Ints:
        row_F, position_F, length_F = state.T
        continues = (
            (position_F >= 0)
            & (self._copied_tokens(state) == tokens_F)
            # Not `shape[1]`: columns beyond a text's length may hold tokens of a longer, earlier text.
            & (position_F + 1 < self._texts.lengths_B[row_F])
        )
        return np.stack([row_F, np.where(continues, position_F + 1, -1), np.where(continues, length_F + 1, 0)], axis=1)

    def copied_texts(self, state: Ints, most: int) -> list[list[int]]:
        """Returns up to `most` tokens that each context copies; none without a match."""
        rows = zip(state[:, 0].tolist(), state[:, 1].tolist(), strict=True)
        lengths = self._texts.lengths_B.tolist()
        return [self._ids_BL[b, at : min(at + most, lengths[b])].tolist() if at >= 0 else [] for b, at in rows]

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Does nothing: `root_states` reads the texts of the branches."""

    def _copied_tokens(self, state: Ints) -> Ints:
        """Returns the token that each context copies, -1 for none."""
        row_F, position_F, _ = state.T
        # Position -1 reads the last column, which `where` discards.
        return np.where(position_F >= 0, self._ids_BL[row_F, position_F], -1).astype(np.int64)
