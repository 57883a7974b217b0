"""KV pools are zeros that take memory only where they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from decoding.kv.pool_memory import allocate_zeros, pick_pool_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_pool_is_zeros_that_can_be_written(dtype: torch.dtype) -> None:
    pool = allocate_zeros((2, 3, 5, 4), dtype)
    assert (pool.shape, pool.dtype) == ((2, 3, 5, 4), dtype)
    assert pool.is_contiguous()
    assert not pool.any()
    pool[1, 2, 3] = 1
    assert pool.sum() == 4
    assert pool.data_ptr() % 64 == 0  # a line of the cache: vectors that lie in two are slow to read


def test_a_pool_of_many_huge_pages_keeps_what_is_written() -> None:
    pool = allocate_zeros((3, 2, 50_001, 24), torch.float32)  # parts that begin within pages
    slots = torch.arange(0, 50_001, 777)
    pool[:, :, slots] = torch.arange(3 * 2 * len(slots) * 24).view(3, 2, len(slots), 24).float()
    assert torch.equal(pool[:, :, slots].flatten(), torch.arange(3 * 2 * len(slots) * 24).float())
    assert not pool[:, :, slots[:-1] + 1].any()


def test_a_pool_beyond_the_memory_is_refused() -> None:
    with pytest.raises(MemoryError):
        allocate_zeros((1, 1, 1 << 52, 64), torch.float32)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of the process as Linux tells it")
def test_untouched_pool_takes_no_memory() -> None:
    def resident_pages() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])

    before = resident_pages()
    pool = allocate_zeros((4, 4, 1 << 20, 32), torch.float32)  # 2 GiB
    assert not pool[:, :, :100].any()
    assert (resident_pages() - before) * 4096 < 64 << 20


def test_size_is_a_share_of_the_device_and_no_more_than_requests_can_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (64 << 30, 80 << 30))
    assert pick_pool_bytes("cuda:0", at_most=1 << 50) == 48 << 30
    assert pick_pool_bytes("cuda:0", at_most=1 << 30) == 1 << 30
    assert pick_pool_bytes("cpu", at_most=12345) == 12345
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert pick_pool_bytes("cpu", at_most=1 << 50) == 1 << 29
