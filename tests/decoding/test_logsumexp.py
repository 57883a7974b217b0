"""The compiled log-sum-exp is at least as exact as PyTorch's, and a row has the same bits alone and among others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.logsumexp import sum_exponentials


def measure(logits: torch.Tensor) -> torch.Tensor:
    logsumexp = np.empty((len(logits), 1), dtype=np.float32)
    sum_exponentials(logits.numpy(), logsumexp)
    return torch.from_numpy(logsumexp)


@settings(max_examples=60, deadline=None)
@given(
    vocab_size=st.sampled_from([1, 2, 15, 16, 17, 511, 512, 513, 1025, 5000]),
    spread=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    share=st.sampled_from([0.0, 0.5, 0.99]),
    seed=st.integers(0, 2**31),
)
def test_it_is_right_to_a_unit_in_the_last_place(vocab_size: int, spread: float, share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(3, vocab_size, generator=generator)
    # some tokens are impossible, the last one never
    logits[:, :-1][torch.rand(3, vocab_size - 1, generator=generator) < share] = -torch.inf
    exact = logits.double().logsumexp(-1, keepdim=True)
    got = measure(logits)
    unit = torch.from_numpy(np.spacing(exact.abs().float().numpy()))
    # of sums near 1 the logarithm is near 0, where a unit is smaller than an error of the sum
    assert ((got - exact).abs() <= torch.maximum(unit, torch.tensor(1e-6))).all()
    for row in range(3):
        assert measure(logits[row : row + 1]).numpy().tobytes() == got[row].numpy().tobytes()


@pytest.mark.parametrize("width", [20, 600])
def test_rows_without_a_number_are_told(width: int) -> None:
    rows = torch.zeros(2, width)
    rows[0] = -torch.inf
    rows[1, width // 2] = torch.nan
    assert measure(rows)[0] == -torch.inf
    assert measure(rows)[1].isnan()
