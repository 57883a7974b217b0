"""What every source promises, over random streams of rounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.drafters.source import DraftSource
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.token_recycling import TokenRecycling
from tests.support.draft_sources import VOCABULARY, check_next_tokens
from tests.support.fakes import HashBackend
from tests.support.streams import BranchStream

SOURCES: dict[str, Callable[[], DraftSource]] = {
    "token_recycling": lambda: TokenRecycling(k=5),
    "token_recycling wider than the vocabulary": lambda: TokenRecycling(k=40),
    "prompt_lookup": lambda: PromptLookup(),
    "prompt_lookup 4..2": lambda: PromptLookup(max_ngram=4, min_ngram=2),
    "suffix": lambda: SuffixDecoding(),
    "suffix for all": lambda: SuffixDecoding(factor=2.0, offset=1.0, across_groups=True),
    "suffix for both": lambda: SuffixDecoding(factor=2.0, offset=1.0, across_groups="both"),
    "suffix as published": lambda: SuffixDecoding(across_groups="finished"),
    "suffix in little room": lambda: SuffixDecoding(max_tokens=100),
    "draft_model": lambda: DraftModel(HashBackend(VOCABULARY), kv_bytes=20_000),
    "draft_model in little room": lambda: DraftModel(HashBackend(VOCABULARY), k=4, kv_bytes=600, max_batched_tokens=16),
}

every_source = pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)


@every_source
def test_successors_are_well_formed(make: Callable[[], DraftSource]) -> None:
    source, num_candidates = make(), 0
    for branches, levels in BranchStream(seed=1, vocabulary=VOCABULARY).run_rounds(source, 60):
        assert len(levels[0].owners) == len(branches)
        for level in levels:
            check_next_tokens(level.next_tokens, len(level.owners), probabilities=source.has_probabilities)
            num_candidates += int((level.next_tokens.ids_FK >= 0).sum())
    assert num_candidates > 100


@every_source
def test_rows_of_a_state_are_independent_of_each_other(make: Callable[[], DraftSource]) -> None:
    """Any choice of rows, some of them twice, has the same successors again."""
    source, rng = make(), np.random.default_rng(0)
    for _, levels in BranchStream(seed=2, vocabulary=VOCABULARY).run_rounds(source, 25):
        for level in levels:
            rows = rng.integers(len(level.owners), size=7)
            again = source.next_tokens(level.state[rows])
            np.testing.assert_array_equal(again.ids_FK, level.next_tokens.ids_FK[rows])
            np.testing.assert_array_equal(again.logp_FK, level.next_tokens.logp_FK[rows])
            np.testing.assert_array_equal(again.trust_F, level.next_tokens.trust_F[rows])


@every_source
def test_two_of_a_kind_agree(make: Callable[[], DraftSource]) -> None:
    runs = [BranchStream(seed=3, vocabulary=VOCABULARY).run_rounds(make(), 25) for _ in range(2)]
    for (_, one), (_, other) in zip(*runs, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a.next_tokens.ids_FK, b.next_tokens.ids_FK)
            np.testing.assert_array_equal(a.next_tokens.logp_FK, b.next_tokens.logp_FK)


@every_source
def test_no_branches_and_no_rows_are_fine(make: Callable[[], DraftSource]) -> None:
    source = make()
    state = source.root_states([])
    check_next_tokens(source.next_tokens(state), 0, probabilities=source.has_probabilities)
    below = source.advance(state, np.empty(0, dtype=np.int64))
    check_next_tokens(source.next_tokens(below), 0, probabilities=source.has_probabilities)
    source.observe([])


@every_source
def test_a_branch_alone_and_short_is_fine(make: Callable[[], DraftSource]) -> None:
    source = make()
    for _, levels in BranchStream(seed=5, vocabulary=VOCABULARY, branches=1, groups=1).run_rounds(source, 20):
        check_next_tokens(levels[0].next_tokens, 1, probabilities=source.has_probabilities)
