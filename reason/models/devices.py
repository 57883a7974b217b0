"""Checks the name of a device, and that it is there, before anything is loaded."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from pathlib import Path

_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")
_CUDA_DRIVERS = ("libcuda.so.1", "nvcuda.dll")


def check_device_name(device: object) -> None:
    """Raises ValueError for what is no name of a device.

    >>> check_device_name("gpu")
    Traceback (most recent call last):
    ValueError: device must be auto, cpu, cuda or cuda:N, got 'gpu'
    """
    if not isinstance(device, str) or not _NAME.fullmatch(device):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}")


def require_device(device: str) -> None:
    """Raises ValueError for a device that this machine lacks. Imports torch for a CUDA device only."""
    check_device_name(device)
    if device.startswith("cuda"):
        if "torch" not in sys.modules and not may_have_gpu():
            raise ValueError(f"device {device!r} is set, but torch sees no CUDA device")
        from decoding.model.device_choice import pick_device  # here: imports torch

        pick_device(device)


def may_have_gpu() -> bool:
    """Returns False where torch can have no GPU: it was built for the CPU, or for CUDA and there is no driver.

    Reads a file of torch without its import, which takes a second.
    """
    spec = importlib.util.find_spec("torch")
    built = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin is not None else None
    if built is None or not built.is_file():
        return True
    platforms = re.findall(r"^(cuda|hip)\b.*= *['\"]", built.read_text(encoding="utf-8"), re.MULTILINE)
    return "hip" in platforms or ("cuda" in platforms and any(map(_can_load, _CUDA_DRIVERS)))


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
