"""The sampler finds the argmax of log p + noise without computing the noise of every id, and without a sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding.core import SamplingParams
from decoding.noise import gumbel_noise
from decoding.sampler import NUM_NARROW, NUM_RANKED, processed_log_probs, sample_tokens
from decoding.sampling_batch import RoundRows, SamplingBatch
from tests.support.enumeration import filtered_distribution

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.1, 0.6, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 5, NUM_NARROW, NUM_NARROW + 1, NUM_RANKED, NUM_RANKED + 1]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.9]),
)


def sample_densely(logits_V: Tensor, params: SamplingParams, keys_2: np.ndarray) -> int:
    """Returns the argmax of log p plus the noise of every id, from the definition."""
    log_p = np.log(np.maximum(filtered_distribution(logits_V.numpy(), params), 1e-300))
    noise = gumbel_noise(torch.from_numpy(keys_2)[None], torch.arange(len(logits_V)))[0].double().numpy()
    is_possible = log_p > -600
    return int(np.argmax(np.where(is_possible, log_p + noise, -np.inf)))


@settings(max_examples=60, deadline=None)
@given(
    params=st.lists(PARAMS, min_size=1, max_size=5),
    vocab_size=st.sampled_from([2, 7, 511, 512, 513, 2500]),
    spread=st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    seed=st.integers(0, 2**31),
)
def test_tokens_are_the_argmax_of_distribution_and_noise(
    params: list[SamplingParams], vocab_size: int, spread: float, seed: int
) -> None:
    # distinct logits: of equal ones at the border of a filter either may be kept
    generator = torch.Generator().manual_seed(seed)
    order = torch.argsort(torch.rand(len(params), vocab_size, generator=generator), dim=-1)
    logits = torch.randn(len(params), vocab_size, generator=generator) * spread + order * 1e-4
    rows = SamplingBatch.from_params(params, [seed + i for i in range(len(params))], range(len(params)))
    tokens = sample_tokens(logits, rows)
    for i, (row, token) in enumerate(zip(params, tokens.tolist(), strict=True)):
        expected = sample_densely(logits[i], row, rows.keys_T2[i]) if row.temperature else int(logits[i].argmax())
        assert token == expected, (i, row)


@pytest.mark.parametrize("top_k", [NUM_RANKED + 1, 2499, 2500])
def test_top_p_is_of_what_a_large_top_k_leaves(top_k: int) -> None:
    """A flat row: the mass beyond the ranked ids, and that beyond top-k, both matter."""
    logits = 0.3 * torch.randn(1, 2500, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(top_k=top_k, top_p=0.5)
    for seed in range(40):
        rows = SamplingBatch.from_params([params], [seed], range(1))
        assert sample_tokens(logits, rows).tolist() == [sample_densely(logits[0], params, rows.keys_T2[0])]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_noise_that_is_not_computed_could_not_have_won(temperature: float) -> None:
    """Over a wide flat vocabulary nearly every id is excluded by its bound alone."""
    logits = torch.randn(4, 60_000, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(temperature=temperature)] * 4
    for seed in range(25):
        rows = SamplingBatch.from_params(params, [seed] * 4, range(4))
        noise = gumbel_noise(torch.from_numpy(rows.keys_T2), torch.arange(60_000))
        scaled = logits * float(np.float32(1) / np.float32(temperature))
        assert sample_tokens(logits, rows).tolist() == (scaled + noise).argmax(-1).tolist()


def test_rows_of_one_request_have_its_parameters() -> None:
    params = [SamplingParams(temperature=0.5), SamplingParams(top_k=3, top_p=0.9, min_p=0.1)]
    seeds, counts = [7, -1], np.array([2, 3])
    got = SamplingBatch.from_params(params, seeds, range(5), counts)
    owners = np.repeat([0, 1], counts)
    expected = SamplingBatch.from_params([params[i] for i in owners], [seeds[i] for i in owners], range(5))
    for name, column in vars(expected).items():
        assert vars(got)[name].tolist() == column.tolist()
        assert vars(got)[name].dtype == column.dtype


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(PARAMS, st.integers(-(2**63), 2**64), st.integers(1, 3)), min_size=1, max_size=5),
    st.lists(st.integers(0, 1 << 20), min_size=1, max_size=3),
)
def test_rows_of_later_rounds_are_as_if_collected_anew(
    requests: list[tuple[SamplingParams, int, int]], starts: list[int]
) -> None:
    params, seeds, counts = (list(column) for column in zip(*requests, strict=True))
    rows = RoundRows(params, seeds)
    for start in starts:
        counts = counts[1:] + counts[:1]
        positions = start + np.arange(sum(counts))
        got = rows.place(positions, counts)
        assert rows.first_rows == tuple(np.cumsum([0, *counts])[:-1].tolist())
        expected = SamplingBatch.from_params(params, seeds, positions, np.array(counts))
        for name in ("temperature_T", "top_k_T", "top_p_T", "min_p_T", "keys_T2", "inverse_temperature", "is_filtered"):
            assert np.array_equal(getattr(got, name), getattr(expected, name)), name


@pytest.mark.parametrize("extreme", [1e30, -1e30, 1e4])
def test_large_logits_keep_the_order_of_sums(extreme: float) -> None:
    logits = torch.full((1, 3000), extreme)
    rows = SamplingBatch.from_params([SamplingParams()], [5], [9])
    noise = gumbel_noise(torch.from_numpy(rows.keys_T2), torch.arange(3000))
    assert sample_tokens(logits, rows).tolist() == (logits + noise).argmax(-1).tolist()


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((200, 700), -torch.inf)
    logits[:, [3, 690]] = torch.tensor([0.0, 1.0])
    for params in (SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(top_k=50), SamplingParams(min_p=0.1)):
        rows = SamplingBatch.from_params([params] * 200, range(200), [1] * 200)
        tokens = set(sample_tokens(logits, rows).tolist())
        assert tokens <= {3, 690}
        assert len(tokens) == 2


def test_row_keeps_its_token_whatever_the_others_are() -> None:
    """Equal logits lie at the borders of all filters; rows of every kind are around."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randint(0, 6, (8, 3000), generator=generator).float()
    params = [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=3),
        SamplingParams(top_k=200),
        SamplingParams(top_p=0.2, temperature=0.4),
        SamplingParams(top_p=0.9),
        SamplingParams(min_p=0.3),
        SamplingParams(top_k=2000, top_p=0.5),
    ]
    seeds, positions = list(range(8)), list(range(8))
    together = sample_tokens(logits, SamplingBatch.from_params(params, seeds, positions)).tolist()
    alone = [
        int(sample_tokens(logits[[i]], SamplingBatch.from_params([params[i]], [seeds[i]], [positions[i]])))
        for i in range(8)
    ]
    assert together == alone


def test_distribution_keeps_ids_beyond_those_that_are_ranked_first() -> None:
    """A flat row keeps more than `NUM_RANKED` ids under top-p; a peaked row beside it does not."""
    logits = torch.stack([torch.linspace(0, 0.1, 5000), torch.linspace(0, 100, 5000)])
    rows = SamplingBatch.from_params([SamplingParams(top_p=0.5)] * 2, [1, 2], [0, 0])
    p = processed_log_probs(logits, rows).exp()
    np.testing.assert_allclose(p[0], filtered_distribution(logits[0].numpy(), SamplingParams(top_p=0.5)), atol=1e-6)
    assert (p[0] > 0).sum() > NUM_RANKED
    assert (p[1] > 0).sum() < 100
