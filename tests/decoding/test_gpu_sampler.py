"""The Triton sampler chooses the tokens of `sample_tokens`; kernels are interpreted, or run on a GPU (see conftest)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoding.core import SamplingParams
from decoding.gpu_sampler import sample_on_gpu
from decoding.noise import gumbel_noise
from decoding.sampler import sample_tokens
from decoding.sampling_batch import SamplingBatch
from tests.support.kernels import KERNEL_DEVICE

PARAMS = {
    "plain": SamplingParams(),
    "cool": SamplingParams(temperature=0.6),
    "greedy": SamplingParams(temperature=0.0),
    "top_p": SamplingParams(temperature=0.6, top_p=0.95),
    "top_k": SamplingParams(top_k=20),
    "top_k and top_p": SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
    "min_p": SamplingParams(min_p=0.05),
    "none of the best sums is kept": SamplingParams(temperature=2.0, top_p=0.05),
    "more ranks than are sorted": SamplingParams(top_k=1500, top_p=0.3),
    "all filters": SamplingParams(temperature=1.3, top_k=900, top_p=0.9, min_p=0.01),
}


def sample(logits: torch.Tensor, rows: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernels compute, where they run."""
    tokens, logsumexp = sample_on_gpu(logits.to(KERNEL_DEVICE), rows)
    return tokens.cpu(), logsumexp.cpu()


def make_logits(rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    """Returns logits that all differ: of equal ones at the border of a filter either may be kept."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.argsort(torch.rand(rows, vocab_size, generator=generator), dim=-1)
    return torch.randn(rows, vocab_size, generator=generator) * 2.5 + order * 1e-4


@pytest.mark.parametrize("name", PARAMS)
def test_tokens_are_those_of_the_sampler_on_a_cpu(name: str) -> None:
    logits = make_logits(3, 2000)
    rows = SamplingBatch.from_params([PARAMS[name]] * 3, [4, 5, 6], [7, 8, 9])
    tokens, logsumexp = sample(logits, rows)
    assert tokens.tolist() == sample_tokens(logits, rows).tolist()
    torch.testing.assert_close(logsumexp, logits.logsumexp(-1), rtol=1e-6, atol=1e-5)


def test_row_does_not_depend_on_the_others_nor_on_the_place_in_the_batch() -> None:
    logits = make_logits(len(PARAMS), 8500).bfloat16()  # two parts; many equal logits
    params = [*PARAMS.values()]
    seeds = list(range(len(params)))
    tokens, logsumexp = sample(logits, SamplingBatch.from_params(params, seeds, seeds))
    for i in (3, 7):
        alone, mass = sample(logits[[i]], SamplingBatch.from_params([params[i]], [i], [i]))
        assert alone.tolist() == [tokens[i]]
        assert mass.tolist() == [logsumexp[i]]


@pytest.mark.parametrize("params", [SamplingParams(top_k=3), SamplingParams(top_p=0.0031)])
def test_of_equal_logits_the_smaller_ids_are_kept(params: SamplingParams) -> None:
    """1,000 equal logits: three are left by top-k 3, and four by a top-p just above three thousandths."""
    rows = SamplingBatch.from_params([params] * 8, range(8), [1] * 8)
    tokens, _ = sample(torch.zeros(8, 1000), rows)
    num_kept = 3 if params.top_k else 4
    noise = gumbel_noise(torch.from_numpy(rows.keys_T2), torch.arange(num_kept))
    assert tokens.tolist() == noise.argmax(-1).tolist()


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((12, 600), -torch.inf)
    logits[:, [3, 590]] = torch.tensor([0.0, 1.0])
    cycle = [SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(top_k=50), SamplingParams(min_p=0.1)]
    rows = SamplingBatch.from_params(cycle * 3, range(12), [1] * 12)
    tokens, logsumexp = sample(logits, rows)
    assert set(tokens.tolist()) == {3, 590}
    np.testing.assert_allclose(logsumexp, np.log(1 + np.e), rtol=1e-5)


def test_noise_of_the_kernels_is_that_of_the_project() -> None:
    """Above all where it is largest and decides: there 1 - u would lose the digits of a small u."""
    from tests.support.noise_kernel import store_noise  # here: it imports triton

    first, second = 12345, 678
    noise = gumbel_noise(torch.tensor([[first, second]], dtype=torch.int32), torch.arange(3_000_000))[0]
    ids = torch.cat([noise.topk(128).indices, noise.topk(64, largest=False).indices, torch.arange(64)]).int()
    result = torch.empty(256, device=KERNEL_DEVICE)
    store_noise[(1,)](ids.to(KERNEL_DEVICE), result, first, second, COUNT=256)
    torch.testing.assert_close(result.cpu(), noise[ids.long()], rtol=2e-6, atol=2e-6)


def test_trace_on_the_meta_device_sees_one_operator_with_the_shapes() -> None:
    rows = SamplingBatch.from_params([SamplingParams(top_p=0.9)] * 5, range(5), range(5))
    tokens, logsumexp = sample_on_gpu(torch.empty(5, 70, dtype=torch.bfloat16, device="meta"), rows)
    assert (tokens.shape, tokens.dtype) == ((5,), torch.int64)
    assert (logsumexp.shape, logsumexp.dtype) == ((5,), torch.float32)
