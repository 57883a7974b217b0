"""Items are cut into splits of their keys on the device, and what fills up a graph is empty."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.model.segment_attention import CUT_BLOCK, cut_items
from tests.support.compiled_kernels import KernelJob, compile_kernels
from tests.support.kernels import KERNEL_DEVICE

pytest.importorskip("triton")

LENGTHS = st.lists(st.integers(1, 2000), min_size=1, max_size=40)


@settings(max_examples=25, deadline=None)
@given(lengths=LENGTHS, split_keys=st.sampled_from([64, 256]), spare=st.tuples(st.integers(0, 9), st.integers(0, 200)))
def test_splits_cover_the_keys_of_each_item_in_order(
    lengths: list[int], split_keys: int, spare: tuple[int, int]
) -> None:
    rng = np.random.default_rng(0)
    expected: list[list[int]] = []
    items: list[list[int]] = []
    for num_keys in lengths:
        first_row, num_rows, first_key, offset, word, order = rng.integers(0, 1000, 6).tolist()
        for split, start in enumerate(range(0, num_keys, split_keys)):
            count = min(split_keys, num_keys - start)
            expected.append([first_row, num_rows, first_key + start, count, offset - start, word, order + split])
        items.append([first_row, num_rows, first_key, num_keys, offset, word, order, len(expected)])
    items += [[0] * 7 + [len(expected)]] * spare[0]
    numbers = torch.tensor(items, dtype=torch.int32).reshape(-1).to(KERNEL_DEVICE)
    splits = cut_items(numbers, len(expected) + spare[1], split_keys).cpu().reshape(-1, 7)
    assert splits[: len(expected)].tolist() == expected
    # no rows and no keys: a program of attention does nothing
    assert not splits[len(expected) :, [1, 3]].any()


@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles_without_spilled_registers(capability: int) -> None:
    numbers = {"num_items": "i32", "num_steps": "i32", "num_splits": "i32"}
    job = KernelJob(
        "decoding.model.plan_kernels:cut_items",
        {"items": "*i32", "splits": "*i32", **numbers},
        {"SPLIT_KEYS": 256, "BLOCK": CUT_BLOCK},
        capability,
        {"num_warps": 4},
    )
    (kernel,) = compile_kernels([job])
    assert kernel.stack_bytes == 0
    assert kernel.registers <= 64
