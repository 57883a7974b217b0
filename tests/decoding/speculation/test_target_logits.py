"""What a round reads of the target leaves the device once, and is what it was there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import SamplingParams
from decoding.sampler import sample_tokens
from decoding.sampling_batch import SamplingBatch
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import Branch
from decoding.speculation.target_logits import TargetLogits, copy_to_host
from tests.support.pretended_gpu import pretended_gpu

BRANCH = Branch(request_id=0, group="", tokens=(1, 2), seed=5, params=SamplingParams(), remaining=9)
DRAFT = Draft((3, 4), (-1, 0))
PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.6),
    SamplingParams(top_p=0.8),
    SamplingParams(top_k=20, min_p=0.05),
)


def target(logits_WV: torch.Tensor) -> TargetLogits:
    rows = SamplingBatch.from_params([BRANCH.params] * 3, [BRANCH.seed] * 3, [2, 3, 4])
    return TargetLogits(logits_WV, rows, (0,), feedback_k=4)


def test_a_round_waits_for_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits_WV = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    here = target(logits_WV)
    outcomes, (ids, logprobs) = Coupled().verify_drafts([BRANCH], [DRAFT], here), here.top_logprobs
    assert np.array_equal(ids, logits_WV.topk(4).indices.numpy())
    with pretended_gpu(monkeypatch) as gpu:
        there = target(logits_WV.to("cuda"))
        assert Coupled().verify_drafts([BRANCH], [DRAFT], there) == outcomes
        assert np.array_equal(there.top_logprobs[0], ids)
        assert np.array_equal(there.top_logprobs[1], logprobs)
        assert gpu.copies_to_host == 1


def test_feedback_alone_is_one_copy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch) as gpu:
        ids, logprobs = target(torch.randn(3, 50).to("cuda")).top_logprobs
        assert ids.shape == logprobs.shape == (3, 4)
        assert gpu.copies_to_host == 1


def test_what_is_packed_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, numbers = (
        torch.tensor([2**31 - 1, 0]),
        torch.tensor([[1e-40, -0.0, float("-inf")], [3.4e38, 1.5, float("nan")]]),
    )
    with pretended_gpu(monkeypatch):
        back = copy_to_host(ids.to("cuda"), numbers.to("cuda"))
    assert back[0].tolist() == ids.tolist()
    assert back[0].dtype == np.int64
    assert np.array_equal(back[1].view(np.int32), numbers.numpy().view(np.int32))


def test_flags_and_double_precision_are_packed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    flags, doubles = torch.tensor([True, False, True]), torch.tensor([0.1, 1e-300], dtype=torch.float64)
    with pretended_gpu(monkeypatch) as gpu:
        back = copy_to_host(flags.to("cuda"), doubles.to("cuda"), doubles[:0].to("cuda"))
        assert gpu.copies_to_host == 1
    assert [array.dtype for array in back] == [np.bool_, np.float64, np.float64]
    assert [array.tolist() for array in back] == [flags.tolist(), doubles.tolist(), []]


def test_a_row_of_a_large_vocabulary_has_the_same_bits_alone_and_among_others() -> None:
    """PyTorch sums a single long row of a CPU in parts, one for each of its threads."""
    logits_WV = 5 * torch.randn(12, 152_064, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(temperature=0.0)

    def measure(first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        rows = SamplingBatch.from_params([params] * count, [5] * count, range(first, first + count))
        one = TargetLogits(logits_WV[first : first + count], rows, (0,))
        return one.logprobs, one.measure_rows(range(count), 1)[2]

    together = measure(0, 12)
    for row in range(12):
        for got, expected in zip(measure(row, 1), together, strict=True):
            assert got.tobytes() == expected[row : row + 1].tobytes()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(PARAMS), min_size=1, max_size=6), st.integers(0, 99))
def test_one_pass_gives_what_the_operations_give(params: list[SamplingParams], seed: int) -> None:
    count = len(params)
    logits_WV = 3 * torch.randn(count, 700, generator=torch.Generator().manual_seed(seed))
    rows = SamplingBatch.from_params(params, range(count), range(count))
    together, apart = (TargetLogits(logits_WV, rows, tuple(range(count)), feedback_k=5) for _ in range(2))
    assert together.tokens.tolist() == apart.sampled.tolist() == sample_tokens(logits_WV, rows).tolist()
    expected = logits_WV.log_softmax(-1)
    assert np.allclose(together.logprobs, expected.numpy()[np.arange(count), together.tokens], atol=1e-5)
    assert np.array_equal(together.logprobs, apart.select_logprobs(apart.sampled).numpy())
    top, ids = expected.topk(5)
    assert together.top_logprobs[0].tolist() == ids.tolist()
    assert np.allclose(together.top_logprobs[1], top.numpy(), atol=1e-5)
