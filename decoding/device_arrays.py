"""Copies the arrays of a round to the model's device, all in one copy: to new memory, or to the same every round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

HostArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]

_ALIGNMENT = 16
"""Bytes; a kernel is compiled for pointers that are multiples of 16, and again for each that is not."""


def copy_arrays(arrays: Sequence[HostArray], device: torch.device) -> list[Tensor]:
    """Returns the arrays as tensors on `device`: views of one buffer, which is copied once and not waited for.

    From pinned memory to CUDA the copy runs beside the host's work. On a CPU nothing is copied.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    ends = list(accumulate(_round_up(array.nbytes) for array in arrays))
    starts = [0, *ends[:-1]]
    there = _pack_arrays(arrays, starts, ends[-1], device).to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(torch.int32 if array.dtype == np.int32 else torch.int64)
        for array, start in zip(arrays, starts, strict=True)
    ]


def copy_numbers(arrays: Sequence[HostArray | Floats], device: torch.device) -> list[Tensor]:
    """Returns arrays of numbers as tensors of their dtypes on `device`, copied as by `copy_arrays`."""
    words: list[HostArray] = [array.view(np.int32) if array.itemsize == 4 else array.view(np.int64) for array in arrays]
    dtypes = [torch.from_numpy(array[:0]).dtype for array in arrays]
    return [there.view(dtype) for there, dtype in zip(copy_arrays(words, device), dtypes, strict=True)]


class ArrayField(NamedTuple):
    """One of the arrays of `FixedArrays`: its largest length, and whether it is int32, else int64."""

    length: int
    is_int32: bool

    @property
    def dtype(self) -> torch.dtype:
        return torch.int32 if self.is_int32 else torch.int64


class FixedArrays:
    """Holds arrays at fixed places of a device, as a CUDA graph reads them; each round fills them anew.

    tensors  of the largest lengths. After a round's numbers come zeros; in the last array what was there before.
    """

    def __init__(self, fields: Sequence[ArrayField], device: torch.device) -> None:
        ends = list(accumulate(_round_up(field.length * field.dtype.itemsize) for field in fields))
        self._starts = [0, *ends[:-1]]
        self._buffer = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        self.tensors = [
            self._buffer[start : start + field.length * field.dtype.itemsize].view(field.dtype)
            for field, start in zip(fields, self._starts, strict=True)
        ]

    def fill(self, arrays: Sequence[HostArray]) -> None:
        """Copies arrays, in one copy that is not waited for. *Mutates* the tensors."""
        # the last array may be long, so only what is used of it is copied
        size = self._starts[-1] + _round_up(arrays[-1].nbytes)
        packed = _pack_arrays(arrays, self._starts, size, self._buffer.device)
        self._buffer[:size].copy_(packed, non_blocking=True)


def _pack_arrays(arrays: Sequence[HostArray], starts: Sequence[int], size: int, device: torch.device) -> Tensor:
    """Returns bytes on the host, with the arrays from `starts` on and zeros elsewhere."""
    # PyTorch gives pinned memory to others only after the copies from it
    buffer = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    data = buffer.numpy()
    for array, start in zip(arrays, starts, strict=True):
        data[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return buffer


def _round_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
