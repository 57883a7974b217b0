"""Chooses the device and the precision of a model."""

from __future__ import annotations

import re
from typing import Literal

import torch

Device = Literal["auto", "cpu", "cuda"] | str
DType = Literal["auto", "float32", "float64", "bfloat16"] | str


def pick_device(device: Device) -> torch.device:
    """Returns the device; `auto` is CUDA where there is one. Raises ValueError for a device this machine lacks."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}")
    picked = torch.device(device)
    if picked.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} is set, but torch sees no CUDA device")
    return picked


def pick_dtype(dtype: DType, device: torch.device) -> torch.dtype:
    """Returns the dtype; `auto` is bfloat16 on CUDA and float32 on CPU, where bfloat16 is slow."""
    known = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
    known["auto"] = known["bfloat16" if device.type == "cuda" else "float32"]
    if dtype not in known:
        raise ValueError(f"dtype must be one of {', '.join(known)}; got {dtype!r}")
    return known[dtype]
