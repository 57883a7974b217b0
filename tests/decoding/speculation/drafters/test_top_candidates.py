"""The likeliest tokens of a row are those of a sort, whatever the sizes, and ties go to the lower output."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.speculation.drafters.model_drafts import HeadIds
from decoding.speculation.drafters.top_candidates import select_top
from decoding.vector_emitter import LANES


@settings(max_examples=300, deadline=None)
@given(
    count=st.integers(1, 100),
    k=st.integers(1, 24),
    levels=st.sampled_from([1, 3, 1000]),
    dropped=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
    infinite=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_tokens_are_those_of_a_stable_sort(
    count: int, k: int, levels: int, dropped: float, infinite: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    row = (rng.integers(levels, size=count) * np.float32(7 / levels)).astype(np.float32)
    row[rng.random(count) < infinite] = -np.inf
    row[rng.integers(count)] = 3.0
    ids = np.where(rng.random(count) < dropped, -1, rng.permutation(count))
    num_whole = int((ids < 0).argmax()) if (ids < 0).any() else count
    logits = np.concatenate([np.full(3, 99, np.float32), row, np.full(LANES, 99, np.float32)])
    ids_K, logp_K = np.empty(k, dtype=np.int64), np.empty(k, dtype=np.float32)
    select_top(logits, 3, count, HeadIds(ids, num_whole), np.empty(LANES, dtype=np.float32), ids_K, logp_K)

    best = [i for i in np.argsort(-row, kind="stable") if ids[i] >= 0 and row[i] > -np.inf][:k]
    expected = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    np.testing.assert_allclose(logp_K[: len(best)], expected[best], atol=1e-5)
    assert ids_K[: len(best)].tolist() == ids[best].tolist()
    assert (logp_K[len(best) :] == -np.inf).all()
    assert (ids_K[len(best) :] == -1).all()


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("count", [5, 40])
def test_rows_without_a_number_have_no_candidate(count: int, value: float) -> None:
    row = np.full(count + LANES, value, dtype=np.float32)
    ids_K, logp_K = np.empty(2, dtype=np.int64), np.empty(2, dtype=np.float32)
    select_top(row, 0, count, HeadIds(np.arange(count), count), np.empty(LANES, dtype=np.float32), ids_K, logp_K)
    assert ids_K.tolist() == [-1, -1]
