"""Arrays reach a GPU in one copy, each where a kernel for aligned pointers can read it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.device_arrays import ArrayField, FixedArrays, copy_arrays, copy_numbers
from tests.support.pretended_gpu import real_or_pretended_gpu

ARRAYS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from((np.int32, np.int64))).map(
        lambda pair: np.arange(pair[0], dtype=pair[1]) * 7 - 3
    ),
    min_size=1,
    max_size=6,
)


@given(ARRAYS)
def test_tensors_equal_the_arrays_and_share_one_buffer(arrays: list[np.typing.NDArray[np.int64]]) -> None:
    with pytest.MonkeyPatch.context() as patch, real_or_pretended_gpu(patch):
        tensors = copy_arrays(arrays, torch.device("cuda"))
        for tensor, array in zip(tensors, arrays, strict=True):
            assert tensor.is_cuda
            assert torch.equal(tensor.cpu(), torch.from_numpy(array))
            assert tensor.dtype == torch.from_numpy(array).dtype
            assert tensor.storage_offset() * tensor.itemsize % 16 == 0
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors if len(tensor)}) <= 1


@given(ARRAYS, ARRAYS, st.integers(0, 5))
def test_fixed_arrays_stay_where_they_are(
    first: list[np.typing.NDArray[np.int64]], second: list[np.typing.NDArray[np.int64]], spare: int
) -> None:
    second = [two.astype(one.dtype) for one, two in zip(first, second, strict=False)]
    fields = [
        ArrayField(max(len(one), len(two)) + spare, is_int32=one.dtype == np.int32)
        for one, two in zip(first, second, strict=False)
    ]
    with pytest.MonkeyPatch.context() as patch, real_or_pretended_gpu(patch):
        fixed = FixedArrays(fields, torch.device("cuda"))
        places = [tensor.storage_offset() * tensor.itemsize for tensor in fixed.tensors]
        assert all(place % 16 == 0 for place in places)
        for arrays in (first[: len(fields)], second):
            fixed.fill(arrays)
            for tensor, array in zip(fixed.tensors, arrays, strict=True):
                assert tensor[: len(array)].tolist() == array.tolist()
            for tensor, array in zip(fixed.tensors[:-1], arrays[:-1], strict=True):
                assert not tensor[len(array) :].any()


def test_nothing_is_copied_on_a_cpu() -> None:
    array = np.arange(3)
    (tensor,) = copy_arrays([array], torch.device("cpu"))
    array[0] = 5
    assert tensor.tolist() == [5, 1, 2]


def test_numbers_keep_their_types_and_bits() -> None:
    arrays = [np.array([0.1, -0.0, np.inf], dtype=np.float32), np.array([0.1, 1e-310]), np.array([], dtype=np.int64)]
    with pytest.MonkeyPatch.context() as patch, real_or_pretended_gpu(patch):
        for tensor, array in zip(copy_numbers(arrays, torch.device("cuda")), arrays, strict=True):
            assert tensor.is_cuda
            assert tensor.cpu().numpy().dtype == array.dtype
            assert tensor.cpu().numpy().tobytes() == array.tobytes()
