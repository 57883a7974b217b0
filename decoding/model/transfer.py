"""From the device to the host in one go: every copy is a wait, and a round has no time for several."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_host(*tensors: Tensor) -> list[npt.NDArray[Any]]:
    """Tensors `[W]` or `[W, n]` of one device, ids or float32, as arrays of int64 and float32; one copy for all.

    Ids must fit 32 bits.
    """
    if tensors[0].is_cpu:
        return [tensor.numpy() for tensor in tensors]
    columns = [tensor.reshape(len(tensor), -1) for tensor in tensors]
    words = torch.cat([c.view(torch.int32) if c.is_floating_point() else c.int() for c in columns], dim=1).cpu().numpy()
    parts = np.split(words, np.cumsum([column.shape[1] for column in columns])[:-1], axis=1)
    return [
        (np.ascontiguousarray(part).view(np.float32) if tensor.is_floating_point() else part.astype(np.int64)).reshape(
            tuple(tensor.shape)
        )
        for part, tensor in zip(parts, tensors, strict=True)
    ]
