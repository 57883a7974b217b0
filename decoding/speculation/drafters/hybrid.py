"""Several sources as one: where they agree on a token their chances add up, where one is silent another speaks.

With context copying and an n-gram table it grows Goose's trees (arXiv 2604.02047): a spine as long as the text repeats,
branches where the table is unsure. With a draft model behind a table, the model writes what no table can know.

Shapes: F contexts, S sources, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoding.speculation.drafters.source import TRUST_LEVELS, Floats, Ints, Successors
from decoding.speculation.interfaces import Branch, Feedback

_MEMORY = 2000.0  # guesses of a kind that count; older ones fade


@dataclass(frozen=True)
class _States:
    """A state of each source, and the requests at whose anchors they stand, none further down."""

    of: tuple[Any, ...]
    requests: tuple[int, ...] = ()

    def __getitem__(self, rows: Any) -> _States:
        kept = tuple(self.requests[row] for row in rows) if self.requests else ()
        return _States(tuple(state[rows] for state in self.of), kept)


@dataclass(frozen=True)
class Hybrid:
    """`Source` made of sources, the heaviest first.

    Each takes, of what those before it leave, the share it has deserved: how often its first guess after the committed
    tokens, at the same trust level, was what the target found likeliest.

    width   candidates kept
    """

    sources: tuple[Any, ...]
    width: int = 10
    has_probabilities: bool = True
    _tried: Floats = field(init=False, repr=False, compare=False)
    _right: Floats = field(init=False, repr=False, compare=False)
    _guessed: dict[int, list[tuple[int, int]]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", tuple(self.sources))
        if len(self.sources) < 2:
            raise ValueError(f"sources must name two or more, got {len(self.sources)}")
        shape = (len(self.sources), TRUST_LEVELS)
        object.__setattr__(self, "_tried", np.full(shape, 2.0, dtype=np.float32))
        object.__setattr__(self, "_right", np.full(shape, 1.0, dtype=np.float32))

    @property
    def feedback_k(self) -> int:
        return max(1, *(int(source.feedback_k) for source in self.sources))

    def anchors(self, branches: Sequence[Branch]) -> _States:
        self._guessed.clear()
        own = tuple(source.anchors(branches) for source in self.sources)
        return _States(own, tuple(branch.request_id for branch in branches))

    def successors(self, state: _States) -> Successors:
        said = [source.successors(own) for source, own in zip(self.sources, state.of, strict=True)]
        if state.requests:
            tops = [[(int(t), int(i)) for t, i in zip(s.trust_F, s.ids_FK[:, 0], strict=True)] for s in said]
            self._guessed.update(zip(state.requests, map(list, zip(*tops, strict=True)), strict=True))
        share_SL = self._right / self._tried
        left = np.ones(len(said[0].trust_F), dtype=np.float32)
        ids, mass, first = [], [], np.zeros(len(left), dtype=np.float32)
        for source, share_L, spoken in zip(self.sources, share_SL, said, strict=True):
            share = np.where(spoken.ids_FK[:, 0] >= 0, share_L[spoken.trust_F], 0).astype(np.float32)
            first = np.where(first > 0, first, share)
            ids.append(spoken.ids_FK)
            mass.append((left * share)[:, None] * _chances(spoken, source.has_probabilities))
            left = left * (1 - share)
        return _best(np.concatenate(ids, axis=1), np.concatenate(mass, axis=1), self.width, first)

    def descend(self, state: _States, tokens_F: Ints) -> _States:
        return _States(tuple(source.descend(own, tokens_F) for source, own in zip(self.sources, state.of, strict=True)))

    def observe(self, feedback: Sequence[Feedback]) -> None:
        for seen in feedback:
            for source, (trust, token) in enumerate(self._guessed.pop(seen.branch.request_id, ())):
                if token >= 0:
                    self._tried[source, trust] += 1
                    self._right[source, trust] += token == int(seen.topk_ids[0, 0])
        fade = np.minimum(1, _MEMORY / self._tried)
        self._tried[:] *= fade
        self._right[:] *= fade
        for source in self.sources:
            source.observe([_narrowed(seen, source.feedback_k) for seen in feedback])


def _chances(spoken: Successors, has_probabilities: bool) -> Floats:
    """What a source says as probabilities; a mere ranking is read as 1/2, 1/4, ..."""
    if has_probabilities:
        return np.exp(spoken.logp_FK)
    halves = 0.5 ** np.arange(1, spoken.ids_FK.shape[1] + 1, dtype=np.float32)
    return np.where(spoken.ids_FK >= 0, halves, 0).astype(np.float32)


def _best(ids_FC: Ints, mass_FC: Floats, width: int, belief_F: Floats) -> Successors:
    """The likeliest `width` tokens, each counted once; trust by the share of the heaviest source that spoke."""
    same_FCC = ids_FC[:, :, None] == ids_FC[:, None, :]
    total = np.matmul(same_FCC.astype(np.float32), mass_FC[:, :, None])[:, :, 0]
    total[(same_FCC.argmax(-1) != np.arange(ids_FC.shape[1])) | (ids_FC < 0)] = 0
    order = np.argsort(-total, axis=1, kind="stable")[:, :width]
    p = np.take_along_axis(total, order, 1)
    with np.errstate(divide="ignore"):
        logp = np.log(p)
    trust = np.minimum((belief_F * TRUST_LEVELS).astype(np.int64), TRUST_LEVELS - 1)
    return Successors(np.where(p > 0, np.take_along_axis(ids_FC, order, 1), -1), logp, trust)


def _narrowed(seen: Feedback, k: int) -> Feedback:
    """As a source that asked for its own k would have got it."""
    if k == 0:
        return Feedback(seen.branch, seen.draft, seen.accepted)
    return Feedback(seen.branch, seen.draft, seen.accepted, seen.topk_ids[:, :k], seen.topk_logprobs[:, :k])
