"""Combines draft sources; probabilities of a token proposed by several are summed.

With suffix matches and an n-gram table it builds a long path where the text repeats, and branches where the table is
uncertain. A draft model after a table drafts where the table has no entry.

With a draft model first and suffix matches after it, it builds the trees of RASD (arXiv 2503.03434): the draft model's
tree for a few levels, and retrieved continuations that it finds likely enough, merged by their common beginnings; below
those levels the retrieved ones go on alone. Candidates are dropped before children are drawn, by the context alone. So
every draw is from a distribution that the draft records, and every acceptance rule stays lossless; tokens that were
drawn must not be dropped by their probability (for `point_mass` and `coupled` alone that does no harm).

Shapes: F contexts, S sources, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from decoding.speculation.draft import MAX_DRAFT_SIZE
from decoding.speculation.drafters.source import TRUST_LEVELS, DraftSource, Floats, Ints, NextTokens, SourceStates
from decoding.speculation.interfaces import Branch, Feedback, reads_hidden
from decoding.validation import require_count, require_share

_MEMORY = 2000.0  # weight of the drafts per source and trust level; older ones decay


@dataclass(frozen=True)
class _SourceStates:
    """The states of each source that drafts at this depth, and at the roots the ids of the requests."""

    states: tuple[SourceStates, ...]
    depth: int
    requests: tuple[int, ...] = ()

    def __getitem__(self, rows: Ints) -> _SourceStates:
        requests = tuple(self.requests[row] for row in rows) if self.requests else ()
        return _SourceStates(tuple(state[rows] for state in self.states), self.depth, requests)


@dataclass(frozen=True)
class HybridSource:
    """Implements `DraftSource` with other sources, the most trusted first.

    Each source gets a share of the probability that those before it leave: its measured precision, how often its first
    candidate after the committed tokens, at the same trust level, was the target's most likely token.

    width             candidates per context
    first_levels      levels of a draft that the first source drafts; below them it is not asked. None: all
    first_must_agree  minimum probability that the first source gives to a candidate of another, where it is asked

    Raises: ValueError for a first source that only ranks and must agree.
    """

    sources: tuple[DraftSource, ...]
    width: int = 10
    first_levels: int | None = None
    first_must_agree: float = 0.0
    has_probabilities: bool = True
    _trials: Floats = field(init=False, repr=False, compare=False)
    _hits: Floats = field(init=False, repr=False, compare=False)
    _first_drafts: dict[int, list[tuple[int, int]]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", tuple(self.sources))
        require_count("width", self.width, at_least=1, at_most=MAX_DRAFT_SIZE)
        require_count("first_levels", self.first_levels, at_least=1, at_most=MAX_DRAFT_SIZE, or_null=True)
        require_share("first_must_agree", self.first_must_agree)
        if len(self.sources) < 2:
            raise ValueError(f"sources must name two or more, got {len(self.sources)}")
        if self.first_must_agree and not self.sources[0].has_probabilities:
            ranking = type(self.sources[0]).__name__
            raise ValueError(f"first_must_agree must be 0 where the first source only ranks, as {ranking} does")
        shape = (len(self.sources), TRUST_LEVELS)
        object.__setattr__(self, "_trials", np.full(shape, 2.0, dtype=np.float32))
        object.__setattr__(self, "_hits", np.full(shape, 1.0, dtype=np.float32))

    @property
    def feedback_k(self) -> int:
        return max(1, *(int(source.feedback_k) for source in self.sources))

    @property
    def reads_hidden(self) -> bool:
        return any(map(reads_hidden, self.sources))

    def root_states(self, branches: Sequence[Branch]) -> _SourceStates:
        self._first_drafts.clear()
        states = tuple(source.root_states(branches) for source in self.sources)
        return _SourceStates(states, 0, tuple(branch.request_id for branch in branches))

    def next_tokens(self, state: _SourceStates) -> NextTokens:
        first_asked = self._first_asked(state.depth)
        pairs = list(zip(self.sources[first_asked:], state.states, strict=True))
        all_tokens = [source.next_tokens(source_state) for source, source_state in pairs]
        if self.first_must_agree and not first_asked:
            all_tokens[1:] = [drop_unlikely(one, all_tokens[0], self.first_must_agree) for one in all_tokens[1:]]
        if state.requests:  # at the roots only: the feedback's row 0 tells whether the first candidate was right
            tops = [[(int(t), int(i)) for t, i in zip(s.trust_F, s.ids_FK[:, 0], strict=True)] for s in all_tokens]
            self._first_drafts.update(zip(state.requests, map(list, zip(*tops, strict=True)), strict=True))
        share_SL = self._hits / self._trials
        remaining = np.ones(len(all_tokens[0].trust_F), dtype=np.float32)
        ids, mass, first = [], [], np.zeros(len(remaining), dtype=np.float32)
        for (source, _), share_L, source_tokens in zip(pairs, share_SL[first_asked:], all_tokens, strict=True):
            # No candidate, no share: the next source gets all of it.
            share = np.where(source_tokens.ids_FK[:, 0] >= 0, share_L[source_tokens.trust_F], 0).astype(np.float32)
            first = np.where(first > 0, first, share)  # the first source with a candidate stays
            ids.append(source_tokens.ids_FK)
            mass.append((remaining * share)[:, None] * _to_probabilities(source_tokens, source.has_probabilities))
            remaining = remaining * (1 - share)
        return _merge_candidates(np.concatenate(ids, axis=1), np.concatenate(mass, axis=1), self.width, first)

    def advance(self, state: _SourceStates, tokens_F: Ints) -> _SourceStates:
        above, below = self._first_asked(state.depth), self._first_asked(state.depth + 1)
        asked_sources = zip(self.sources[below:], state.states[below - above :], strict=True)
        return _SourceStates(
            tuple(source.advance(source_state, tokens_F) for source, source_state in asked_sources), state.depth + 1
        )

    def _first_asked(self, depth: int) -> int:
        """Returns the index of the first source that is asked for candidates at this depth."""
        return 0 if self.first_levels is None or depth < self.first_levels else 1

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
            source.observe([narrow_feedback(outcome, source.feedback_k) for outcome in feedback])


def drop_unlikely(source_tokens: NextTokens, judge: NextTokens, least: float) -> NextTokens:
    """Returns the candidates to which the judge gives a probability of at least `least`, best first.

    Where the judge knows nothing, all remain.
    """
    same_FKC = source_tokens.ids_FK[:, :, None] == judge.ids_FK[:, None, :]
    judged_FK = np.where(same_FKC, np.exp(judge.logp_FK)[:, None, :], 0).max(axis=2, initial=0)
    dropped_FK = (judged_FK < least) & (judge.ids_FK[:, :1] >= 0)
    ids_FK = np.where(dropped_FK, -1, source_tokens.ids_FK)
    logp_FK = np.where(ids_FK >= 0, source_tokens.logp_FK, np.float32(-np.inf))
    order = np.argsort(ids_FK < 0, axis=1, kind="stable")  # padding last
    ids_FK, logp_FK = np.take_along_axis(ids_FK, order, 1), np.take_along_axis(logp_FK, order, 1)
    return NextTokens(ids_FK, logp_FK, source_tokens.trust_F)


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


def narrow_feedback(outcome: Feedback, k: int) -> Feedback:
    """Returns the feedback with the top k tokens only, as the source would have received it alone."""
    if k == 0:
        return replace(outcome, topk_ids=None, topk_logprobs=None)
    ids, logprobs = outcome.top_tokens()
    return replace(outcome, topk_ids=ids[:, :k], topk_logprobs=logprobs[:, :k])
