"""What every source promises, over random streams of rounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.drafters.source import TRUST_LEVELS, Source, Successors
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.token_recycling import TokenRecycling
from tests.support.fakes import HashBackend
from tests.support.streams import Stream

VOCABULARY = 32
SOURCES: dict[str, Callable[[], Source]] = {
    "token_recycling": lambda: TokenRecycling(k=5),
    "token_recycling wider than the vocabulary": lambda: TokenRecycling(k=40),
    "prompt_lookup": lambda: PromptLookup(),
    "prompt_lookup 4..2": lambda: PromptLookup(max_ngram=4, min_ngram=2),
    "suffix": lambda: SuffixDecoding(),
    "suffix for all": lambda: SuffixDecoding(factor=2.0, offset=1.0, across_groups=True),
    "suffix in little room": lambda: SuffixDecoding(max_tokens=100),
    "draft_model": lambda: DraftModel(HashBackend(VOCABULARY), kv_bytes=20_000),
    "draft_model in little room": lambda: DraftModel(HashBackend(VOCABULARY), k=4, kv_bytes=600, max_rows=16),
}

every_source = pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)


def check(successors: Successors, rows: int, *, probabilities: bool) -> None:
    ids_FK, logp_FK, trust_F = successors.ids_FK, successors.logp_FK, successors.trust_F
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


@every_source
def test_successors_are_well_formed(make: Callable[[], Source]) -> None:
    source, found = make(), 0
    for branches, seen in Stream(seed=1, vocabulary=VOCABULARY).run(source, 60):
        assert len(seen[0].owners) == len(branches)
        for level in seen:
            check(level.successors, len(level.owners), probabilities=source.has_probabilities)
            found += int((level.successors.ids_FK >= 0).sum())
    assert found > 100


@every_source
def test_rows_of_a_state_are_independent_of_each_other(make: Callable[[], Source]) -> None:
    """Any choice of rows, some of them twice, has the same successors again."""
    source, rng = make(), np.random.default_rng(0)
    for _, seen in Stream(seed=2, vocabulary=VOCABULARY).run(source, 25):
        for level in seen:
            rows = rng.integers(len(level.owners), size=7)
            again = source.successors(level.state[rows])
            np.testing.assert_array_equal(again.ids_FK, level.successors.ids_FK[rows])
            np.testing.assert_array_equal(again.logp_FK, level.successors.logp_FK[rows])
            np.testing.assert_array_equal(again.trust_F, level.successors.trust_F[rows])


@every_source
def test_two_of_a_kind_agree(make: Callable[[], Source]) -> None:
    runs = [Stream(seed=3, vocabulary=VOCABULARY).run(make(), 25) for _ in range(2)]
    for (_, one), (_, other) in zip(*runs, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a.successors.ids_FK, b.successors.ids_FK)
            np.testing.assert_array_equal(a.successors.logp_FK, b.successors.logp_FK)


@every_source
def test_no_branches_and_no_rows_are_fine(make: Callable[[], Source]) -> None:
    source = make()
    state = source.anchors([])
    check(source.successors(state), 0, probabilities=source.has_probabilities)
    below = source.descend(state, np.empty(0, dtype=np.int64))
    check(source.successors(below), 0, probabilities=source.has_probabilities)
    source.observe([])


@every_source
def test_a_branch_alone_and_short_is_fine(make: Callable[[], Source]) -> None:
    source = make()
    for _, seen in Stream(seed=5, vocabulary=VOCABULARY, branches=1, groups=1).run(source, 20):
        check(seen[0].successors, 1, probabilities=source.has_probabilities)
