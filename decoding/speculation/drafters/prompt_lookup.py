"""Prompt lookup: when the last few tokens occurred before in the same text, what followed then may follow now.

The most recent earlier occurrence of the longest possible n-gram is copied from. The texts of a round are a matrix
which is scanned anew each time: that costs less than an index of n-grams, which is slow to build for a new branch
and some hundred bytes a token.

Shapes: B branches, L longest text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from decoding.speculation.drafters.source import TRUST_LEVELS, Floats, Ints, NextTokens
from decoding.speculation.interfaces import Branch, Feedback
from decoding.validation import is_count

Ids = npt.NDArray[np.int32]


class TokenMatrix:
    """The tokens of a round's branches, one row each, padded with -1. What was there last round is not read again."""

    def __init__(self) -> None:
        self._ids_BL: Ids = np.empty((0, 256), dtype=np.int32)
        self._requests: list[int] = []
        self.lengths_B: Ints = np.empty(0, dtype=np.int64)

    @property
    def num_texts(self) -> int:
        """Rows of the matrix."""
        return len(self._requests)

    def update_texts(self, branches: Sequence[Branch]) -> Ids:
        """The texts of exactly these branches; valid until the next call. *Mutates*."""
        requests = [branch.request_id for branch in branches]
        lengths_B = np.array([len(branch.tokens) for branch in branches], dtype=np.int64)
        longest = int(lengths_B.max(initial=1))
        if requests != self._requests or longest > self._ids_BL.shape[1]:
            self._rearrange_rows(requests, longest)
        self.lengths_B[lengths_B < self.lengths_B] = 0  # another text under an old number
        fresh = [branch.tokens[n:] for branch, n in zip(branches, self.lengths_B.tolist(), strict=True)]
        counts_B = lengths_B - self.lengths_B
        ends_B = np.cumsum(counts_B)
        within = np.arange(int(counts_B.sum())) - np.repeat(ends_B - lengths_B, counts_B)
        self._ids_BL[np.repeat(np.arange(len(branches)), counts_B), within] = list(chain.from_iterable(fresh))
        self.lengths_B = lengths_B
        return self._ids_BL[:, :longest]

    def _rearrange_rows(self, requests: list[int], longest: int) -> None:
        """Moves the rows that stay to their new places, forgets the others and makes room."""
        old = {request: row for row, request in enumerate(self._requests)}
        moved = [(new, old[request]) for new, request in enumerate(requests) if request in old]
        width = self._ids_BL.shape[1]
        ids_BL = np.full((len(requests), width if longest <= width else 2 * longest), -1, dtype=np.int32)
        lengths_B = np.zeros(len(requests), dtype=np.int64)
        if moved:
            to, fro = np.array(moved).T
            ids_BL[to, :width] = self._ids_BL[fro]
            lengths_B[to] = self.lengths_B[fro]
        self._ids_BL, self.lengths_B, self._requests = ids_BL, lengths_B, requests


def find_latest_matches(ids_BL: Ids, lengths_B: Ints, *, max_ngram: int, min_ngram: int) -> Ints:
    """For each text the end of the most recent earlier occurrence of the longest n-gram it ends with; -1 for none.

    >>> text = np.array([[1, 2, 3, 7, 2, 3, 8, 1, 2, 3]], dtype=np.int32)
    >>> [find_latest_matches(text, np.array([10]), max_ngram=n, min_ngram=1).tolist() for n in (3, 2)]
    [[3], [6]]
    """
    rows_B = np.arange(len(ids_BL))
    match_B = np.full(len(ids_BL), -1, dtype=np.int64)
    matches_BL = np.ones(ids_BL.shape, dtype=bool)  # of the last n tokens, by where they end
    matches_BL[rows_B, lengths_B - 1] = False
    for n in range(1, max_ngram + 1):
        token_B = np.where(lengths_B >= n, ids_BL[rows_B, np.maximum(lengths_B - n, 0)], -2)
        same_BL = ids_BL[:, : ids_BL.shape[1] - n + 1] == token_B[:, None]
        matches_BL[:, : n - 1] = False
        matches_BL[:, n - 1 :] &= same_BL
        last_B = ids_BL.shape[1] - matches_BL[:, ::-1].argmax(axis=1)
        matches_B = matches_BL[rows_B, last_B - 1]
        if not matches_B.any():
            break
        if n >= min_ngram:
            match_B = np.where(matches_B, last_B, match_B)
    return match_B


def count_matching_tokens(ids_BL: Ids, lengths_B: Ints, match_B: Ints) -> Ints:
    """How many tokens before `at` are those at the text's end, as far as it makes a difference; 0 where there is none.

    >>> count_matching_tokens(np.array([[1, 2, 3, 7, 1, 2, 3]], dtype=np.int32), np.array([7]), np.array([3])).tolist()
    [3]
    """
    back = np.arange(1, TRUST_LEVELS + 1)
    rows = np.arange(len(ids_BL))[:, None]
    before, end = (np.maximum(position_B[:, None] - back, 0) for position_B in (match_B, lengths_B))
    same = (ids_BL[rows, before] == ids_BL[rows, end]) & (match_B[:, None] >= back)
    matching_B: Ints = np.logical_and.accumulate(same, axis=1).sum(axis=1)
    return matching_B


@dataclass(eq=False)
class PromptLookup:
    """Implements `DraftSource`. Copies after a match of `min_ngram` to `max_ngram` tokens.

    State, one row per context: the branch's place in the round; the position it copies from, -1 for nowhere; how
    many tokens agree so far.
    """

    max_ngram: int = 3
    min_ngram: int = 1
    _texts: TokenMatrix = field(init=False, repr=False, default_factory=TokenMatrix)
    _ids_BL: Ids = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not is_count(self.min_ngram, at_least=1):
            raise ValueError(f"min_ngram must be an int >= 1, got {self.min_ngram!r}")
        if not is_count(self.max_ngram, at_least=self.min_ngram):
            raise ValueError(f"max_ngram must be an int >= min_ngram ({self.min_ngram}), got {self.max_ngram!r}")

    @property
    def num_texts(self) -> int:
        """Texts of the last round, which alone are stored."""
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
            & (position_F + 1 < self._texts.lengths_B[row_F])
        )
        return np.stack([row_F, np.where(continues, position_F + 1, -1), np.where(continues, length_F + 1, 0)], axis=1)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Does nothing: the branches have the texts."""

    def _copied_tokens(self, state: Ints) -> Ints:
        """The token each context copies, -1 for none."""
        row_F, position_F, _ = state.T
        return np.where(position_F >= 0, self._ids_BL[row_F, position_F], -1).astype(np.int64)
