"""Allocates the memory of KV pools, which takes no memory before it is used."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def allocate_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Returns zeros; on a CPU the system gives the memory of a page when it is first written.

    `torch.zeros` writes all of it: a pool of one GiB would take a second and one GiB of memory at rest. NumPy's zeros
    are the system's, which every page is made of until it is written.
    """
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # bytes: NumPy has no bfloat16, and a zero of every dtype is zero bytes
    count = int(np.prod(shape, dtype=np.int64))
    return torch.from_numpy(np.zeros(count * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
