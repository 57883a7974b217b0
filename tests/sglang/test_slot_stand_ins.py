"""What stands in for SGLang's compiled copies does what a loop over single slots does. Needs no SGLang."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
import torch

from decoding.sglang_plugin import CPU_STAND_INS


def load_stand_in(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"stand_in_{name}", CPU_STAND_INS / "sgl_kernel" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def slots() -> ModuleType:
    return load_stand_in("__init__")


def test_slots_of_requests_are_written_and_read_packed(slots: ModuleType) -> None:
    table = torch.arange(50, dtype=torch.int32).view(5, 10)
    rows, begin, end = torch.tensor([3, 0, 4]), torch.tensor([2, 5, 0]), torch.tensor([5, 5, 1])
    out = torch.full((6,), -1)
    slots.assign_extend_cache_locs_cpu(rows, table, begin, end, out, 10)
    assert out.tolist() == [32, 33, 34, 40, -1, -1]
    slots.assign_req_to_token_pool_cpu(rows, table, begin, end, torch.tensor([7, 8, 9, 6]), 10)
    assert table[3].tolist() == [30, 31, 7, 8, 9, 35, 36, 37, 38, 39]
    assert table[0].tolist() == list(range(10))
    assert table[4, 0] == 6


def test_rows_that_overlap_are_all_read_before_one_is_written(slots: ModuleType) -> None:
    layers = [torch.arange(24, dtype=torch.float32).view(6, 4), torch.arange(12, dtype=torch.float64).view(6, 2)]
    before = [layer.clone() for layer in layers]
    slots.copy_all_layer_kv_cache_cpu(
        torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64),
        torch.tensor([16, 16]),
        torch.tensor([1, 2, 3]),
        torch.tensor([2, 3, 5]),
    )
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(layer, old[[0, 2, 3, 5, 4, 5]])


def test_links_of_trees_are_first_children_and_next_siblings() -> None:
    """Below the root 0: nodes 1 and 3; below 1: node 2; node 4 is padding."""
    mask = torch.eye(5, dtype=torch.bool)
    mask[1, 0] = mask[2, 0] = mask[2, 1] = mask[3, 0] = True
    both = torch.stack([mask, torch.eye(5, dtype=torch.bool)])
    positions, (rows, child, sibling) = torch.zeros(10, dtype=torch.int64), torch.zeros(3, 2, 5, dtype=torch.int64)
    load_stand_in("speculative").reconstruct_indices_from_tree_mask(
        both.flatten(), torch.tensor([7, 20]), positions, rows, child, sibling, 2, 5
    )
    assert positions.tolist() == [7, 8, 9, 8, 7] + [20] * 5
    assert rows.tolist() == [list(range(5)), list(range(5, 10))]
    assert child.tolist() == [[1, 2, -1, -1, -1], [-1] * 5]
    assert sibling.tolist() == [[-1, 3, -1, -1, -1], [-1] * 5]
