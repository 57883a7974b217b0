"""The noise is uniform, and independent across seeds, positions and ids; draws follow the softmax."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoding.core import SamplingParams
from decoding.noise import gumbel_noise, noise_key_of, noise_keys, wrap_seeds
from decoding.sampler import processed_log_probs, sample_tokens
from decoding.sampling_batch import SamplingBatch
from decoding.speculation.target_logits import TargetLogits
from tests.support.enumeration import filtered_distribution

EULER = 0.5772156649


def grid(seeds: list[int], positions: list[int], ids: torch.Tensor) -> np.ndarray:
    keys = torch.from_numpy(noise_keys(seeds, positions))
    return gumbel_noise(keys, ids).double().numpy()


def uniform(noise: np.ndarray) -> np.ndarray:
    """Gumbel noise back to the uniform it came from."""
    levels: np.ndarray = np.exp(-np.exp(-noise))
    return levels


def test_noise_is_a_function_of_its_arguments_only() -> None:
    ids = torch.arange(50)
    alone = grid([7], [3], ids)[0]
    assert np.array_equal(grid([1, 7, 2], [3, 3, 9], ids)[1], alone)
    subset = torch.tensor([[4, 17, 30]])
    assert np.array_equal(grid([7], [3], subset)[0], alone[[4, 17, 30]])


@pytest.mark.parametrize("axis", ["seed", "position", "id"])
def test_noise_is_uniform_and_independent_along_each_axis(axis: str) -> None:
    """Consecutive seeds, positions and ids are the inputs a weak hash would tell apart least."""
    n = 100_000
    if axis == "id":
        u = uniform(grid([12345], [10], torch.arange(n))[0])
    elif axis == "position":
        u = uniform(grid([12345] * n, list(range(n)), torch.tensor([5]))[:, 0])
    else:
        u = uniform(grid(list(range(n)), [10] * n, torch.tensor([5]))[:, 0])
    counts = np.histogram(u, bins=100, range=(0, 1))[0]
    chi2 = ((counts - n / 100) ** 2 / (n / 100)).sum()
    assert 50 < chi2 < 160, chi2  # 99 degrees of freedom
    for lag in (1, 2, 16):
        assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 4 / np.sqrt(n)


def test_keys_are_the_same_with_and_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [0, 1, -1, 2**63, 2**64 - 1, 123_456_789]
    positions = [0, 5, 2**31, 2**40, 1, 7]
    compiled_keys = noise_keys(seeds, positions).tolist()
    one_by_one = [noise_key_of(*row) for row in zip(wrap_seeds(seeds), positions, strict=True)]
    monkeypatch.setattr("decoding.noise.explain_no_numba", lambda: "Numba is not installed")
    assert noise_keys(seeds, positions).tolist() == compiled_keys == [list(map(int, key)) for key in one_by_one]


def test_noise_has_the_moments_of_gumbel() -> None:
    noise = grid([3], [0], torch.arange(200_000))[0]
    assert abs(noise.mean() - EULER) < 0.02
    assert abs(noise.var() - np.pi**2 / 6) < 0.05
    assert np.isfinite(noise).all()


def test_noise_of_positions_and_ids_is_not_a_function_of_their_sum() -> None:
    """(position p, id i + 1) is not (position p + 1, id i): a sum of the two would make it so."""
    block = grid([9] * 64, list(range(64)), torch.arange(64))
    assert len(np.unique(block)) > 0.999 * block.size


@pytest.mark.parametrize("vary", ["seed", "position"])
def test_argmax_frequencies_are_the_softmax(vary: str) -> None:
    n, logits = 40_000, torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 0.5, -3.0])
    seeds, positions = (range(n), [4] * n) if vary == "seed" else ([77] * n, range(n))
    rows = SamplingBatch.from_params([SamplingParams()] * n, list(seeds), list(positions))
    tokens = sample_tokens(logits.expand(n, -1), rows)
    expected = logits.double().softmax(-1).numpy() * n
    counts = np.bincount(tokens.numpy(), minlength=len(logits))
    assert ((counts - expected) ** 2 / expected).sum() < 22.5  # 6 degrees of freedom, p = 0.001


def test_adjacent_positions_draw_independently() -> None:
    n, logits = 40_000, torch.tensor([0.3, 0.0, -0.5])
    rows = SamplingBatch.from_params([SamplingParams()] * n, [5] * n, list(range(n)))
    tokens = sample_tokens(logits.expand(n, -1), rows).numpy()
    joint = np.histogram2d(tokens[0::2], tokens[1::2], bins=3)[0]  # pairs that do not overlap
    p = logits.double().softmax(-1).numpy()
    expected = np.outer(p, p) * (n // 2)
    assert ((joint - expected) ** 2 / expected).sum() < 26.1  # 8 degrees of freedom, p = 0.001


def test_filters_equal_a_plain_reference_row_by_row() -> None:
    generator = torch.Generator().manual_seed(0)
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
        for t in (0.0, 0.6, 1.0)
        for k in (0, 1, 4)
        for p in (1.0, 0.7)
        for m in (0.0, 0.2)
    ]
    logits = torch.randn(len(params), 12, generator=generator) * 2
    rows = SamplingBatch.from_params(params, [1] * len(params), list(range(len(params))))
    got = processed_log_probs(logits, rows).exp().numpy()
    for i, row in enumerate(params):
        np.testing.assert_allclose(got[i], filtered_distribution(logits[i].numpy(), row), atol=1e-6, err_msg=str(row))


def test_filters_of_a_row_do_not_depend_on_other_rows() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 2000, generator=generator)
    params = [SamplingParams(top_k=3), SamplingParams(temperature=0.0), SamplingParams(top_p=0.9, temperature=0.7)]
    together = sample_tokens(logits, SamplingBatch.from_params(params, [1, 2, 3], [4, 5, 6])).tolist()
    alone = [
        int(sample_tokens(logits[i : i + 1], SamplingBatch.from_params([params[i]], [i + 1], [i + 4])))
        for i in range(3)
    ]
    assert together == alone


def test_logprob_ignores_temperature_and_filters() -> None:
    """Temperature and filters change the choice, never the reported log-probability."""
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    target = TargetLogits(logits, SamplingBatch.from_params([SamplingParams(temperature=0.3, top_k=1)], [1], [1]), (0,))
    assert target.tokens.tolist() == [1]
    assert float(target.logprobs[0]) == pytest.approx(float(logits.log_softmax(-1)[0, 1]))
