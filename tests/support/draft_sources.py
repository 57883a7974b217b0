"""Draft sources with known distributions, and branches to draft for."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from decoding.core import SamplingParams, Tokens
from decoding.speculation.draft import Draft, DraftSampling, TreeTemplate
from decoding.speculation.drafters.child_selection import SAMPLING_CODES
from decoding.speculation.drafters.source import TRUST_LEVELS, Ints, NextTokens
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, Feedback
from tests.support.fakes import HashBackend, mix_bits

DRAWS: list[DraftSampling] = list(SAMPLING_CODES)
VOCABULARY = 32
PRUNABLE: list[DraftSampling] = ["coupled", "likely"]
MOST = 0.995  # the maximum estimate


class ContextStates(list[Tokens]):
    """A state that is the contexts themselves."""

    def __getitem__(self, rows: Any) -> Any:
        return ContextStates(list.__getitem__(self, int(row)) for row in rows)


@cache
def _random_distribution(read: Tokens, vocabulary: int, known: int, scarce: bool) -> dict[int, float]:
    rng = np.random.default_rng(abs(hash(read)))
    p = rng.dirichlet(np.full(vocabulary, 0.6)) * rng.uniform(0.7, 1.0)
    known = int(rng.integers(known + 1)) if scarce else known
    return {int(t): float(np.float32(p[t])) for t in np.argsort(-p)[:known]}


@dataclass
class FakeSource:
    """A made-up distribution for every context: `known` of `vocabulary` tokens, from the last `reads` of them."""

    vocabulary: int = 8
    known: int = 8
    reads: int = 3
    scarce: bool = False  # some contexts know nothing, or little
    feedback_k: int = 0
    has_probabilities: bool = True
    received: list[Feedback] = field(default_factory=list)

    def table(self, context: Tokens) -> dict[int, float]:
        """Tokens and their probabilities, best first."""
        read = context[len(context) - self.reads :] if self.reads else ()
        return _random_distribution(read, self.vocabulary, self.known, self.scarce)

    def root_states(self, branches: Sequence[Branch]) -> ContextStates:
        return ContextStates(branch.tokens[:] for branch in branches)

    def next_tokens(self, state: ContextStates) -> NextTokens:
        ids = np.full((len(state), self.known), -1, dtype=np.int64)
        logp = np.full(ids.shape, -np.inf, dtype=np.float32)
        for f, context in enumerate(state):
            table = self.table(context)
            ids[f, : len(table)], logp[f, : len(table)] = list(table), np.log(list(table.values()))
        return NextTokens(ids, logp, np.array([context[-1] % 3 for context in state], dtype=np.int64))

    def advance(self, state: ContextStates, tokens_F: Ints) -> ContextStates:
        return ContextStates((*context, int(token)) for context, token in zip(state, tokens_F, strict=True))

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.received += feedback


def branch(tokens: Tokens = (1, 2, 3), seed: int = 1, remaining: int = 100, **params: Any) -> Branch:
    return Branch(seed, "a problem", tokens, seed, SamplingParams(**params), remaining)


def random_branches(rng: random.Random, count: int, vocabulary: int = 8) -> list[Branch]:
    settings: list[dict[str, Any]] = [{"temperature": 0.0}, {}, {"temperature": 0.6, "top_p": 0.9}, {"top_k": 3}]
    return [
        branch(
            tuple(rng.randrange(vocabulary) for _ in range(rng.randint(1, 9))),
            rng.randrange(1 << 40),
            rng.choice([1, 2, 3, 5, 100]),
            **rng.choice(settings),
        )
        for _ in range(count)
    ]


def random_template(rng: random.Random, nodes: int) -> TreeTemplate:
    parents, ranks, children = [], [], dict.fromkeys(range(-1, nodes), 0)
    for node in range(nodes):
        parents.append(rng.choice([*[-1, *range(node)][: 1 + rng.randint(0, 4)], node - 1]))
        ranks.append(children[parents[-1]])
        children[parents[-1]] += 1
    return TreeTemplate(tuple(parents), tuple(ranks))


def set_calibration(drafter: TreeDrafter, seed: int) -> TreeDrafter:
    """Sets the calibration to that after some rounds."""
    rng, counts = np.random.default_rng(seed), drafter.calibration
    counts.trials[:] = rng.integers(0, 50, size=len(counts.trials))
    counts.hits[:] = counts.trials * rng.uniform(size=len(counts.trials))
    return drafter


def paths(drafts: Iterable[Draft]) -> dict[tuple[int, Tokens], float]:
    """Every node of every draft by its branch and tokens, and its path probability."""
    return {
        (b, tuple(draft.tokens[i] for i in draft.path_to(node))): draft.path_probabilities[node]
        for b, draft in enumerate(drafts)
        for node in range(len(draft))
    }


class SumStates(tuple[Any, Any]):
    """The state that `HashBackend` derives from a context: its sum and its length."""

    def __getitem__(self, rows: Any) -> Any:
        sums, lengths = tuple(self)
        return SumStates((sums[rows], lengths[rows]))


@dataclass
class OracleSource:
    """`HashBackend`'s own distribution after every context."""

    backend: HashBackend
    feedback_k: int = 0
    has_probabilities: bool = True

    def root_states(self, branches: Sequence[Branch]) -> SumStates:
        state = SumStates((np.zeros(len(branches), dtype=np.uint64), np.zeros(len(branches), dtype=np.int64)))
        sums, lengths = tuple(state)
        for b, one in enumerate(branches):
            at = np.arange(len(one.tokens), dtype=np.uint64)
            tokens = np.array(one.tokens, dtype=np.uint64)
            sums[b] = mix_bits(tokens * np.uint64(65537) + mix_bits(at + np.uint64(1))).sum(dtype=np.uint64)
            lengths[b] = len(one.tokens)
        return state

    def next_tokens(self, state: SumStates) -> NextTokens:
        logp_FV = self.backend.apply_head(torch.from_numpy(next(iter(state)).view(np.int64))).log_softmax(-1)
        logp_FK, ids_FK = logp_FV.sort(dim=-1, descending=True)
        return NextTokens(ids_FK.numpy(), logp_FK.numpy(), np.zeros(len(ids_FK), dtype=np.int64))

    def advance(self, state: SumStates, tokens_F: Ints) -> SumStates:
        sums, lengths = tuple(state)
        rows = tokens_F.astype(np.uint64) * np.uint64(65537) + mix_bits(lengths.astype(np.uint64) + np.uint64(1))
        return SumStates((np.add(sums, mix_bits(rows), dtype=np.uint64), lengths + 1))

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Ignores feedback: the source has the exact distribution."""


@dataclass
class RecordingDrafter(TreeDrafter):
    """Stores its feedback."""

    received: list[Feedback] = field(default_factory=list)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.received += feedback
        super().observe(feedback)


def check_next_tokens(next_tokens: NextTokens, rows: int, *, probabilities: bool) -> None:
    """Asserts the contract of `NextTokens`: shapes, types, padding at the end, best first, no token twice."""
    ids_FK, logp_FK, trust_F = next_tokens.ids_FK, next_tokens.logp_FK, next_tokens.trust_F
    assert ids_FK.shape == logp_FK.shape == (rows, ids_FK.shape[1])
    assert [array.dtype.name for array in (ids_FK, logp_FK, trust_F)] == ["int64", "float32", "int64"]
    there = ids_FK >= 0
    assert (ids_FK < VOCABULARY).all()
    assert (ids_FK[~there] == -1).all()
    assert (logp_FK[~there] == -np.inf).all()
    assert np.isfinite(logp_FK[there]).all()
    assert (there[:, 1:] <= there[:, :-1]).all(), "padding is at the end"
    assert (logp_FK[:, 1:] <= logp_FK[:, :-1]).all(), "best first"
    for row in ids_FK:
        real = row[row >= 0]
        assert len(set(real.tolist())) == len(real), "a candidate twice"
    assert trust_F.shape == (rows,)
    assert ((trust_F >= 0) & (trust_F < TRUST_LEVELS)).all()
    if probabilities:
        assert (np.exp(logp_FK).sum(axis=1) <= 1 + 1e-5).all()
