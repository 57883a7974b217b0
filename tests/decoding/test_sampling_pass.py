"""One pass over the logits gives what its parts give, in any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.compiled import compiled
from decoding.logsumexp import sum_exponentials
from decoding.noise import gumbel_of_token, hash_token
from decoding.sampler_kernels import Floats, Hashes, draw_tokens, new_runs
from decoding.sampling_pass import draw_and_measure
from decoding.sampling_vectors import bound_sums, copy_run
from decoding.thread_team import run_in_team
from decoding.top_logits import find_largest

VOCAB_SIZES = (1, 2, 15, 16, 17, 511, 512, 513, 1300)


@settings(max_examples=60, deadline=None)
@given(
    vocab_size=st.sampled_from(VOCAB_SIZES),
    num_rows=st.integers(1, 5),
    num_threads=st.integers(1, 3),
    width=st.integers(0, 12),
    share=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**31),
)
def test_one_pass_equals_its_parts(
    vocab_size: int, num_rows: int, num_threads: int, width: int, share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = (3 * rng.standard_normal((num_rows, vocab_size))).astype(np.float32)
    logits[:, :-1][rng.random((num_rows, vocab_size - 1)) < share] = -np.inf
    inverse = rng.choice(np.array([0.0, 1.0, 1.4], dtype=np.float32), num_rows)
    keys = rng.integers(0, 2**32, (num_rows, 2), dtype=np.uint32)
    is_filtered, given_tokens = rng.random(num_rows) < 0.3, rng.integers(0, vocab_size, num_rows)
    width = min(width, vocab_size)
    tokens, logsumexp = given_tokens.copy(), np.empty((num_rows, 1), dtype=np.float32)
    logprobs, ids = np.empty(num_rows, dtype=np.float32), np.empty((num_rows, width), dtype=np.int64)
    top = np.empty((num_rows, width), dtype=np.float32)
    arrays = logits, inverse, keys, is_filtered, tokens, logsumexp, logprobs, ids, top
    run_in_team(num_threads, draw_and_measure, *arrays)

    expected_tokens, expected_sum = given_tokens.copy(), np.empty_like(logsumexp)
    draw_tokens(logits, inverse, keys, np.flatnonzero(~is_filtered), expected_tokens)
    sum_exponentials(logits, expected_sum)
    np.testing.assert_array_equal(tokens, expected_tokens)
    np.testing.assert_array_equal(logsumexp, expected_sum)
    np.testing.assert_array_equal(logprobs, logits[np.arange(num_rows), tokens] - expected_sum[:, 0])
    if width:
        expected_ids, expected_top = np.empty_like(ids), np.empty_like(top)
        find_largest(logits, expected_ids, expected_top)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_array_equal(top, expected_top - expected_sum)


@compiled
def _bound_run(
    logits: Floats, start: int, count: int, inverse: np.float32, key_2: Hashes, bounds: Floats, hashes: Hashes
) -> tuple[np.float32, np.float32]:
    run, _, _ = new_runs()
    largest = copy_run(logits, start, count, run)
    return largest, bound_sums(run, start, count, inverse, key_2[0], key_2[1], bounds, hashes)


@pytest.mark.parametrize("start", [0, 512, 151_552])
@pytest.mark.parametrize("count", [1, 16, 37, 512])
def test_bounds_are_above_the_sums_and_close_to_them(start: int, count: int) -> None:
    rng, inverse = np.random.default_rng(count), np.float32(0.7)
    logits, (_, bounds, hashes) = rng.standard_normal(start + count).astype(np.float32), new_runs()
    key_2 = np.array([123_456_789, 4_000_000_000], dtype=np.uint32)
    largest, largest_bound = _bound_run(logits, start, count, inverse, key_2, bounds, hashes)
    assert largest == logits[start:].max()
    assert largest_bound == bounds[:count].max()
    ids = range(start, start + count)
    assert hashes[:count].tolist() == [hash_token(np.uint32(token), key_2[0], key_2[1]) for token in ids]
    first, second = key_2.view(np.int32)
    noise = [gumbel_of_token(first, second, token) for token in ids]
    excess = bounds[:count] - (logits[start:] * inverse + noise)
    assert (excess > 0).all()
    # of half of the ids the noise is below .37, where the bound is not close
    assert np.median(excess) < 0.7
