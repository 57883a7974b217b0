"""Memory of weights begins with a line of the cache, that of larger ones with a huge page where the system has some."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from decoding.model.panels import PanelType
from decoding.model.weight_panels import allocate_aligned, allocate_weights


@pytest.mark.parametrize("number_type", [np.float32, np.uint16, np.int16])
@pytest.mark.parametrize("size", [0, 1, 1000, (1 << 19) - 1, 1 << 19, (1 << 20) + 33])
def test_weights_keep_what_is_written(size: int, number_type: PanelType) -> None:
    weights, others = allocate_weights(size, number_type), allocate_weights(size, number_type)
    weights[:], others[:] = np.arange(size) % 1000, 7
    assert weights.dtype == np.dtype(number_type)
    np.testing.assert_array_equal(weights, np.arange(size) % 1000)


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_rows_of_weights_lie_in_whole_lines_of_the_cache(size: int) -> None:
    assert allocate_aligned(size, np.float32).ctypes.data % 64 == 0
    assert allocate_weights(size, np.int16).ctypes.data % 64 == 0


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="a system without huge pages that are asked for")
def test_larger_weights_begin_with_a_huge_page() -> None:
    assert allocate_weights(1 << 20, np.int16).ctypes.data % (1 << 21) == 0
    assert allocate_weights(1 << 19, np.int16).ctypes.data % (1 << 21) == 0


@pytest.mark.parametrize("size", [1 << 54, 1 << 62])
def test_weights_beyond_the_memory_are_refused(size: int) -> None:
    with pytest.raises(MemoryError):
        allocate_weights(size, np.float32)
