"""Registers operators of PyTorch that launch Triton kernels, and what those that launch them have in common."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_LIBRARY: Any = torch.library.Library("decoding", "FRAGMENT")  # type: ignore[no-untyped-call]


def has_triton() -> bool:
    """Returns whether Triton is installed."""
    return find_spec("triton") is not None


def round_to_power(size: int) -> int:
    """Returns the least power of two that is not smaller.

    >>> [round_to_power(size) for size in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return 1 << (size - 1).bit_length()


def define_operator(schema: str, run: Callable[..., Any], describe: Callable[..., Any]) -> None:
    """Registers `torch.ops.decoding.NAME`, whose first argument is a tensor on the device that it runs on.

    schema    NAME(arguments) -> results, in PyTorch's notation
    run       launches the kernels: on CUDA, and on the CPU, where Triton's interpreter runs them in tests
    describe  returns empty results, for the meta device, where a trace sees one operator
    """

    def run_on_device(first: Tensor, *others: object) -> Any:
        # Triton launches on the current device, which in a new thread is the first one
        with torch.cuda.device(first.device):
            return run(first, *others)

    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, run_on_device, "CUDA")
    _LIBRARY.impl(name, run, "CPU")
    _LIBRARY.impl(name, describe, "Meta")
