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
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.speculation.draft import MAX_DRAFT_SIZE
from decoding.speculation.drafters.feeding import mark_passes
from decoding.speculation.drafters.ngram_hash_table import find_or_append
from decoding.speculation.drafters.source import TRUST_LEVELS, DraftSource, Floats, Ints, NextTokens, SourceStates
from decoding.speculation.interfaces import Branch, Feedback, is_trained, reads_hidden
from decoding.validation import require_count, require_share

Bools = npt.NDArray[np.bool_]
_BranchKey = tuple[int, int]  # its request, and its number of tokens before a draft
_FirstDrafts = dict[_BranchKey, list[tuple[int, int]]]  # trust level and token of each source

_MEMORY = 2000.0  # weight of the drafts per source and trust level; older ones decay


@dataclass(frozen=True)
class _SourceStates:
    """The states of each source that drafts at this depth, and at the roots which branches they are of."""

    states: tuple[SourceStates, ...]
    depth: int
    branches: tuple[_BranchKey, ...] = ()

    def __getitem__(self, rows: Ints) -> _SourceStates:
        branches = tuple(self.branches[row] for row in rows) if self.branches else ()
        return _SourceStates(tuple(state[rows] for state in self.states), self.depth, branches)


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
    _first_drafts: _FirstDrafts = field(init=False, repr=False, compare=False, default_factory=dict)
    _first_drafts_before: _FirstDrafts = field(init=False, repr=False, compare=False, default_factory=dict)

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

    @property
    def is_trained(self) -> bool:
        return any(map(is_trained, self.sources))

    def root_states(self, branches: Sequence[Branch]) -> _SourceStates:
        # two rounds: on a GPU the outcome of one is learned after the drafts of the next
        object.__setattr__(self, "_first_drafts_before", self._first_drafts)
        object.__setattr__(self, "_first_drafts", {})
        states = tuple(source.root_states(branches) for source in self.sources)
        return _SourceStates(states, 0, tuple(map(_key_of, branches)))

    def next_tokens(self, state: _SourceStates) -> NextTokens:
        first_asked = self._first_asked(state.depth)
        pairs = list(zip(self.sources[first_asked:], state.states, strict=True))
        all_tokens = [source.next_tokens(source_state) for source, source_state in pairs]
        if self.first_must_agree and not first_asked:
            all_tokens[1:] = [drop_unlikely(one, all_tokens[0], self.first_must_agree) for one in all_tokens[1:]]
        if state.branches:  # at the roots only: the feedback's row 0 tells whether the first candidate was right
            tops = [[(int(t), int(i)) for t, i in zip(s.trust_F, s.ids_FK[:, 0], strict=True)] for s in all_tokens]
            self._first_drafts.update(zip(state.branches, map(list, zip(*tops, strict=True)), strict=True))
        merged = _merge_candidates(
            np.concatenate([tokens.ids_FK for tokens in all_tokens], axis=1),
            np.concatenate([tokens.logp_FK for tokens in all_tokens], axis=1),
            np.array([tokens.trust_F for tokens in all_tokens]),
            np.cumsum([tokens.ids_FK.shape[1] for tokens in all_tokens]),
            np.array([not source.has_probabilities for source, _ in pairs]),
            self._hits[first_asked:] / self._trials[first_asked:],
            self.width,
        )
        return NextTokens(*merged)

    def needs_pass(self, state: _SourceStates) -> Bools | None:
        """See `TakesPasses`: a context takes a row where one of the sources runs a model over it."""
        pairs = zip(self.sources[self._first_asked(state.depth) :], state.states, strict=True)
        masks = [mark_passes(source, own_state) for source, own_state in pairs]
        known = [mask for mask in masks if mask is not None]
        return np.logical_or.reduce(known) if known else None

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
            key = _key_of(outcome.branch)
            firsts = self._first_drafts.get(key) or self._first_drafts_before.get(key, [])
            for index, (trust, token) in enumerate(firsts):
                if token >= 0:
                    self._trials[index, trust] += 1
                    self._hits[index, trust] += token == int(outcome.top_tokens()[0][0, 0])
        fade = np.minimum(1, _MEMORY / self._trials)
        # Both by the same factor, in place: precision stays, and the dataclass is frozen.
        self._trials[:] *= fade
        self._hits[:] *= fade
        for source in self.sources:
            source.observe([narrow_feedback(outcome, source.feedback_k) for outcome in feedback])


def _key_of(branch: Branch) -> _BranchKey:
    return branch.request_id, len(branch.tokens)


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


@compiled
def _merge_candidates(
    ids_FC: Ints, logp_FC: Floats, trust_SF: Ints, end_S: Ints, only_ranks_S: Bools, share_SL: Floats, width: int
) -> tuple[Ints, Floats, Ints]:
    """Returns the fields of the merged `NextTokens`: of each context the `width` most likely tokens, each once.

    `ids_FC` has the candidates of source after source, of which each ends at its `end`. Their trust is the share of the
    first source with candidates. Of equals the candidate of the more trusted source comes first.
    """
    width = min(width, ids_FC.shape[1])
    ids_FK = np.full((len(ids_FC), width), -1, dtype=np.int64)
    logp_FK = np.full((len(ids_FC), width), -np.inf, dtype=np.float32)
    trust_F = np.zeros(len(ids_FC), dtype=np.int64)
    tokens_C, mass_C = np.empty(ids_FC.shape[1], dtype=np.int64), np.empty(ids_FC.shape[1], dtype=np.float32)
    for f in range(len(ids_FC)):
        count, begin = 0, 0
        first, remaining = np.float32(0), np.float32(1)
        for s in range(len(end_S)):
            # no candidate, no share: the next source gets all of it
            share = share_SL[s, trust_SF[s, f]] if ids_FC[f, begin] >= 0 else np.float32(0)
            first = first if first > 0 else share
            for c in range(begin, end_S[s]):
                token = ids_FC[f, c]
                if token < 0:
                    break  # padding
                p = np.float32(0.5 ** (c - begin + 1)) if only_ranks_S[s] else np.exp(logp_FC[f, c])
                at = find_or_append(tokens_C, mass_C, count, token)
                count = max(count, at + 1)
                mass_C[at] += remaining * share * p
            remaining *= 1 - share
            begin = end_S[s]
        for k in range(min(width, count)):
            best = mass_C[:count].argmax()
            if mass_C[best] <= 0:
                break
            ids_FK[f, k], logp_FK[f, k] = tokens_C[best], np.log(mass_C[best])
            mass_C[best] = 0
        trust_F[f] = min(int(first * TRUST_LEVELS), TRUST_LEVELS - 1)
    return ids_FK, logp_FK, trust_F


def narrow_feedback(outcome: Feedback, k: int) -> Feedback:
    """Returns the feedback with the top k tokens only, as the source would have received it alone."""
    if k == 0:
        return replace(outcome, topk_ids=None, topk_logprobs=None)
    ids, logprobs = outcome.top_tokens()
    return replace(outcome, topk_ids=ids[:, :k], topk_logprobs=logprobs[:, :k])
