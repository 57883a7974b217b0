"""Recognises errors that say that memory is used up, whichever library raised them."""

from __future__ import annotations

import torch

MEMORY_ERRORS = (RuntimeError, MemoryError)
"""Classes for an `except`; `is_out_of_memory` then tells which of them is one."""
_MESSAGES = ("out of memory", "allocate memory", "ALLOC_FAILED")
"""Of Triton and the CUDA runtime, of PyTorch on a CPU, and of cuBLAS: they raise plain RuntimeErrors."""


class OutOfMemory(RuntimeError):
    """Says that not even the least that must be in memory fits, and which setting leaves more."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether the error says that a device or the host has no memory left.

    >>> is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory")), is_out_of_memory(RuntimeError("a bug"))
    (True, False)
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError | OutOfMemory):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)
