"""The matrix is a dictionary from token to the target's last ranking after it."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.core import SamplingParams
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.interfaces import Branch, Feedback
from tests.support.streams import BranchStream


def test_equals_a_dictionary_of_the_latest_rows() -> None:
    source, stream = TokenRecycling(k=4), BranchStream(seed=0, vocabulary=50)
    last: dict[int, list[int]] = {}
    for _ in range(40):
        branches = stream.next_round()
        levels, drafts = stream.walk_source(source, branches)
        for level in levels:
            for context, ids in zip(level.contexts, level.next_tokens.ids_FK.tolist(), strict=True):
                assert ids == last.get(context[-1], [-1] * 4)
        feedback = stream.commit_random(source, branches, drafts)
        source.observe(feedback)
        for one in feedback:
            for token, ids in zip(
                (one.branch.tokens[-1], *one.draft.tokens), one.top_tokens()[0].tolist(), strict=True
            ):
                last[token] = ids


def test_refused_rows_count_and_of_a_token_fed_twice_the_last_row_counts() -> None:
    source = TokenRecycling(k=2)
    branch = Branch(0, "", (1, 2), 0, SamplingParams(), 9)
    draft = Draft((3, 2, 4), (-1, 0, 0))
    top = np.array([[10, 11], [12, 13], [14, 15], [16, 17]])
    source.observe([Feedback(branch, draft, (), top, -top.astype(np.float32))])
    assert source.next_tokens(np.array([2, 3, 4, 1, 99])).ids_FK.tolist() == [
        [14, 15],
        [12, 13],
        [16, 17],
        [-1, -1],
        [-1, -1],
    ]


def test_memory_is_bounded_by_the_largest_id() -> None:
    source = TokenRecycling()
    for _ in BranchStream(seed=1, vocabulary=100).run_rounds(source, 100):
        pass
    assert source.size_bytes <= 2 * 100 * 8 * 4


def test_a_wrong_k_is_named() -> None:
    with pytest.raises(ValueError, match="k must be an int >= 1, got 0"):
        TokenRecycling(k=0)
