"""Combines draft sources; probabilities of a token proposed by several are summed.

With prompt lookup or suffix matches and an n-gram table it builds the trees of Goose (arXiv 2604.02047): a long path
where the text repeats, branches where the table is uncertain. A draft model after a table drafts where the table has no
entry.

Shapes: F contexts, S sources, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from decoding.speculation.draft import MAX_DRAFT_SIZE
from decoding.speculation.drafters.source import TRUST_LEVELS, DraftSource, Floats, Ints, NextTokens, SourceStates
from decoding.speculation.interfaces import Branch, Feedback
from decoding.validation import require_count

_MEMORY = 2000.0  # weight of the drafts per source and trust level; older ones decay


@dataclass(frozen=True)
class _SourceStates:
    """The states of each source, and at the roots the ids of the requests; empty below them."""

    states: tuple[SourceStates, ...]
    requests: tuple[int, ...] = ()

    def __getitem__(self, rows: Ints) -> _SourceStates:
        requests = tuple(self.requests[row] for row in rows) if self.requests else ()
        return _SourceStates(tuple(state[rows] for state in self.states), requests)


@dataclass(frozen=True)
class HybridSource:
    """Implements `DraftSource` with other sources, the most trusted first.

    Each source gets a share of the probability that those before it leave: its measured precision, how often its first
    candidate after the committed tokens, at the same trust level, was the target's most likely token.

    width   candidates per context
    """

    sources: tuple[DraftSource, ...]
    width: int = 10
    has_probabilities: bool = True
    _trials: Floats = field(init=False, repr=False, compare=False)
    _hits: Floats = field(init=False, repr=False, compare=False)
    _first_drafts: dict[int, list[tuple[int, int]]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", tuple(self.sources))
        require_count("width", self.width, at_least=1, at_most=MAX_DRAFT_SIZE)
        if len(self.sources) < 2:
            raise ValueError(f"sources must name two or more, got {len(self.sources)}")
        shape = (len(self.sources), TRUST_LEVELS)
        object.__setattr__(self, "_trials", np.full(shape, 2.0, dtype=np.float32))
        object.__setattr__(self, "_hits", np.full(shape, 1.0, dtype=np.float32))

    @property
    def feedback_k(self) -> int:
        return max(1, *(int(source.feedback_k) for source in self.sources))

    def root_states(self, branches: Sequence[Branch]) -> _SourceStates:
        self._first_drafts.clear()
        states = tuple(source.root_states(branches) for source in self.sources)
        return _SourceStates(states, tuple(branch.request_id for branch in branches))

    def next_tokens(self, state: _SourceStates) -> NextTokens:
        pairs = zip(self.sources, state.states, strict=True)
        all_tokens = [source.next_tokens(source_state) for source, source_state in pairs]
        if state.requests:  # at the roots only: the feedback's row 0 tells whether the first candidate was right
            tops = [[(int(t), int(i)) for t, i in zip(s.trust_F, s.ids_FK[:, 0], strict=True)] for s in all_tokens]
            self._first_drafts.update(zip(state.requests, map(list, zip(*tops, strict=True)), strict=True))
        share_SL = self._hits / self._trials
        remaining = np.ones(len(all_tokens[0].trust_F), dtype=np.float32)
        ids, mass, first = [], [], np.zeros(len(remaining), dtype=np.float32)
        for source, share_L, source_tokens in zip(self.sources, share_SL, all_tokens, strict=True):
            # No candidate, no share: the next source gets all of it.
            share = np.where(source_tokens.ids_FK[:, 0] >= 0, share_L[source_tokens.trust_F], 0).astype(np.float32)
            first = np.where(first > 0, first, share)  # the first source with a candidate stays
            ids.append(source_tokens.ids_FK)
            mass.append((remaining * share)[:, None] * _to_probabilities(source_tokens, source.has_probabilities))
            remaining = remaining * (1 - share)
        return _merge_candidates(np.concatenate(ids, axis=1), np.concatenate(mass, axis=1), self.width, first)

    def advance(self, state: _SourceStates, tokens_F: Ints) -> _SourceStates:
        return _SourceStates(
            tuple(
                source.advance(source_state, tokens_F)
                for source, source_state in zip(self.sources, state.states, strict=True)
            )
        )

    def observe(self, feedback: Sequence[Feedback]) -> None:
        for outcome in feedback:
            # Popped: a request that ends in this round must not stay in the dict.
            for index, (trust, token) in enumerate(self._first_drafts.pop(outcome.branch.request_id, ())):
                if token >= 0:
                    self._trials[index, trust] += 1
                    self._hits[index, trust] += token == int(outcome.top_tokens()[0][0, 0])
        fade = np.minimum(1, _MEMORY / self._trials)
        # Both by the same factor, in place: precision stays, and the dataclass is frozen.
        self._trials[:] *= fade
        self._hits[:] *= fade
        for source in self.sources:
            source.observe([_narrow_feedback(outcome, source.feedback_k) for outcome in feedback])


def _to_probabilities(source_tokens: NextTokens, has_probabilities: bool) -> Floats:
    """Returns the probabilities of the candidates; for a ranking 1/2, 1/4, ..."""
    if has_probabilities:
        return np.exp(source_tokens.logp_FK)
    halves = 0.5 ** np.arange(1, source_tokens.ids_FK.shape[1] + 1, dtype=np.float32)
    return np.where(source_tokens.ids_FK >= 0, halves, 0).astype(np.float32)


def _merge_candidates(ids_FC: Ints, mass_FC: Floats, width: int, share_F: Floats) -> NextTokens:
    """Returns the most likely `width` tokens, each once; trust is the share of the first source with candidates."""
    same_FCC = ids_FC[:, :, None] == ids_FC[:, None, :]
    # [F, C, C] booleans: C is some twenty, so this is faster than a loop with dicts.
    total = np.matmul(same_FCC.astype(np.float32), mass_FC[:, :, None])[:, :, 0]
    # A token's mass stays at its first occurrence; later ones and padding get 0.
    total[(same_FCC.argmax(-1) != np.arange(ids_FC.shape[1])) | (ids_FC < 0)] = 0
    # Stable: of equals the candidate of the more trusted source comes first.
    order = np.argsort(-total, axis=1, kind="stable")[:, :width]
    p = np.take_along_axis(total, order, 1)
    with np.errstate(divide="ignore"):
        logp = np.log(p)
    trust = np.minimum((share_F * TRUST_LEVELS).astype(np.int64), TRUST_LEVELS - 1)
    return NextTokens(np.where(p > 0, np.take_along_axis(ids_FC, order, 1), -1), logp, trust)


def _narrow_feedback(outcome: Feedback, k: int) -> Feedback:
    """Returns the feedback with the top k tokens only, as the source would have received it alone."""
    if k == 0:
        return Feedback(outcome.branch, outcome.draft, outcome.accepted_nodes)
    ids, logprobs = outcome.top_tokens()
    return Feedback(outcome.branch, outcome.draft, outcome.accepted_nodes, ids[:, :k], logprobs[:, :k])
