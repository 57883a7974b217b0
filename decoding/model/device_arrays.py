"""Copies the arrays of a round to the model's device, all in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16
"""Bytes; a kernel is compiled for pointers that are multiples of 16, and again for each that is not."""


def copy_arrays(arrays: Sequence[npt.NDArray[np.int32] | npt.NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Returns the arrays as tensors on `device`: views of one buffer, which is copied once and not waited for.

    From pinned memory to CUDA the copy runs beside the host's work. On a CPU nothing is copied.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    ends = list(accumulate(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays))
    # PyTorch gives pinned memory to others only after the copies from it
    buffer = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    data, starts = buffer.numpy(), [0, *ends[:-1]]
    for array, start in zip(arrays, starts, strict=True):
        data[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = buffer.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(torch.int32 if array.dtype == np.int32 else torch.int64)
        for array, start in zip(arrays, starts, strict=True)
    ]
