"""Sizes and allocates the memory of KV pools, which on a CPU takes no memory before it is used."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.kv.out_of_memory import MEMORY_ERRORS, OutOfMemory, is_out_of_memory

CPU_SHARE, CUDA_SHARE = 1 / 8, 3 / 4
"""Shares that a pool may have of a CPU's whole memory, and of a GPU's memory that is free and that rounds do not take.
The rest of a GPU is for models that load later."""
LEAST_CUDA_SHARE = 1 / 8
"""Share of a GPU's free memory that a pool has where the largest round would take nearly all: such rounds are split."""
_SMALL_BYTES = 1 << 19
"""Bytes of each part of a pool that are in small pages. A text of two thousand tokens lies there, whose pages
fit in the CPU's table of them; to touch a huge page takes 170 us, and 4,500 where a virtual machine gave it back."""


def pick_pool_bytes(device: torch.device | str, *, at_most: int, workspace: int = 0) -> int:
    """Returns the size of a pool on this device: a share of its memory, `at_most` what its requests can fill.

    workspace   bytes that a round takes besides; of a GPU's memory they stay free
    """
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(at_most, int(max((free - workspace) * CUDA_SHARE, free * LEAST_CUDA_SHARE)))
    # all memory, not what is free: the size is the same at every start, and unused slots take none
    return min(at_most, int(_physical_bytes() * CPU_SHARE))


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def open_pool(new_pool: Callable[[int], Tensor], capacity: int, bytes_per_token: int) -> Tensor:
    """Returns `new_pool(capacity)`. Raises: OutOfMemory naming the setting, where there is no memory for it."""
    try:
        return new_pool(capacity)
    except MEMORY_ERRORS as error:
        if not is_out_of_memory(error):
            raise
        mib = -(-(capacity + 1) * bytes_per_token >> 20)
        raise OutOfMemory(
            f"kv_mib: there is no memory for a KV pool of {mib} MiB ({capacity} tokens); set a smaller one ({error})"
        ) from error


def allocate_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Returns zeros; on a CPU the system gives the memory of a page when it is first written.

    `torch.zeros` writes all of it: a pool of one GiB would take a second and one GiB of memory at rest.

    shape   `[layers, heads, ...]`, of which a text takes the first rows of each head
    """
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # bytes: NumPy has no bfloat16, and a zero of every dtype is zero bytes
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return torch.from_numpy(_map_zeros(size, shape[0] * shape[1])).view(dtype).view(shape)


def map_huge_pages(size: int) -> mmap.mmap:
    """Returns zeros in huge pages, where the kernel has some. For Linux. Raises: MemoryError."""
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"there are no {size:,} bytes: {error}") from error
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _map_zeros(size: int, num_parts: int) -> npt.NDArray[np.uint8]:
    """Returns zeros that begin with a page: huge ones, but for the first `_SMALL_BYTES` of each of some equal parts.

    Raises: MemoryError.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # not Linux
        return np.zeros(size, dtype=np.uint8)
    memory = map_huge_pages(max(size, 1))
    with suppress(OSError):  # a kernel without huge pages
        for part in range(num_parts):
            begin = part * (size // num_parts) // mmap.PAGESIZE * mmap.PAGESIZE
            memory.madvise(mmap.MADV_NOHUGEPAGE, begin, min(_SMALL_BYTES, size - begin))
    return np.frombuffer(memory, dtype=np.uint8, count=size)
