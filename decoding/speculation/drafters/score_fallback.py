"""Drafts from suffix matches where their score is high enough, from another source elsewhere.

So SuffixDecoding (arXiv 2411.04975) is combined with a draft model: the other source runs only for the branches whose
match promises fewer tokens than it would draft itself.

Shapes: F contexts, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from decoding.speculation.drafters.feeding import mark_passes
from decoding.speculation.drafters.hybrid import narrow_feedback
from decoding.speculation.drafters.source import TRUST_LEVELS, DraftSource, Floats, Ints, NextTokens, SourceStates
from decoding.speculation.interfaces import Branch, Feedback, is_trained, reads_hidden
from decoding.validation import require_not_negative


@runtime_checkable
class ScoredSource(Protocol):
    """A source that tells at the roots how many tokens it is expected to draft rightly."""

    def draft_scores(self, state: SourceStates) -> Floats:
        """Returns the expected number of accepted tokens of each context, F rows."""
        ...


@dataclass(frozen=True)
class _FallbackStates:
    """The states of both sources, and which contexts belong to the first."""

    by_first: npt.NDArray[np.bool_]
    first: SourceStates
    second: SourceStates

    def __getitem__(self, rows: Ints) -> _FallbackStates:
        return _FallbackStates(self.by_first[rows], self.first[rows], self.second[rows])


@dataclass(frozen=True)
class ScoreFallback:
    """Implements `DraftSource` with two sources, of which the first tells its score, as suffix matches do.

    least_score  the score from which the first source drafts for a branch: as many tokens as the second would draft

    Raises: ValueError for other sources.
    """

    sources: tuple[DraftSource, ...]
    least_score: float = 3.0

    def __post_init__(self) -> None:
        require_not_negative("least_score", self.least_score)
        if len(self.sources) != 2:
            raise ValueError(f"sources must name two, got {len(self.sources)}")
        if not isinstance(self.sources[0], ScoredSource):
            raise ValueError("the first of the sources must tell its score, as SuffixDecoding does")
        if not all(source.has_probabilities for source in self.sources):
            raise ValueError("both of the sources must have probabilities; token_recycling and prompt_lookup only rank")

    @property
    def feedback_k(self) -> int:
        return max(source.feedback_k for source in self.sources)

    @property
    def reads_hidden(self) -> bool:
        return any(map(reads_hidden, self.sources))

    @property
    def is_trained(self) -> bool:
        return any(map(is_trained, self.sources))

    @property
    def has_probabilities(self) -> bool:
        return True

    def root_states(self, branches: Sequence[Branch]) -> _FallbackStates:
        first, second = (source.root_states(branches) for source in self.sources)
        scored = self.sources[0]
        assert isinstance(scored, ScoredSource)
        return _FallbackStates(scored.draft_scores(first) >= self.least_score, first, second)

    def next_tokens(self, state: _FallbackStates) -> NextTokens:
        """Asks each source for its own contexts only: a draft model is not run for the others."""
        rows = np.flatnonzero(state.by_first), np.flatnonzero(~state.by_first)
        next_tokens = [
            source.next_tokens(states[own_rows])
            for source, states, own_rows in zip(self.sources, (state.first, state.second), rows, strict=True)
        ]
        shape = len(state.by_first), max(one.ids_FK.shape[1] for one in next_tokens)
        ids_FK, logp_FK = np.full(shape, -1, dtype=np.int64), np.full(shape, -np.inf, dtype=np.float32)
        trust_F = np.zeros(shape[0], dtype=np.int64)
        half = TRUST_LEVELS // 2  # levels of their own_rows: the sources are right about differently often
        for i, (own_rows, one) in enumerate(zip(rows, next_tokens, strict=True)):
            width = one.ids_FK.shape[1]
            ids_FK[own_rows, :width], logp_FK[own_rows, :width] = one.ids_FK, one.logp_FK
            trust_F[own_rows] = i * half + one.trust_F // 2
        return NextTokens(ids_FK, logp_FK, trust_F)

    def needs_pass(self, state: _FallbackStates) -> npt.NDArray[np.bool_]:
        """See `TakesPasses`: of a context that belongs to a source with a model."""
        takes_F = np.zeros(len(state.by_first), dtype=np.bool_)
        for source, states, is_own_F in zip(
            self.sources, (state.first, state.second), (state.by_first, ~state.by_first), strict=True
        ):
            own_rows = np.flatnonzero(is_own_F)
            if (passes := mark_passes(source, states[own_rows])) is not None:
                takes_F[own_rows] = passes
        return takes_F

    def advance(self, state: _FallbackStates, tokens_F: Ints) -> _FallbackStates:
        first, second = self.sources
        return _FallbackStates(
            state.by_first, first.advance(state.first, tokens_F), second.advance(state.second, tokens_F)
        )

    def observe(self, feedback: Sequence[Feedback]) -> None:
        for source in self.sources:
            source.observe([narrow_feedback(outcome, source.feedback_k) for outcome in feedback])
