"""Keeps the rotary embedding of positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RotaryTable:
    """Cos and signed sin of positions, as the rotary module of a checkpoint computes them.

    like   any numbers `[1, hidden]` with the device and dtype of the table
    """

    def __init__(self, rotary: Any, like: Tensor) -> None:
        self._rotary, self._like = rotary, like
        self._cos_sin: Tensor | None = None

    def extend_to(self, largest: int) -> Tensor:
        """Returns `[positions, 2, D]` with at least the positions up to `largest`. *Mutates*: the table grows."""
        if self._cos_sin is None or largest >= len(self._cos_sin):
            positions = torch.arange(max(256, 2 * largest), device=self._like.device)[None]
            cos, sin = self._rotary(self._like, positions)
            half = cos.shape[-1] // 2
            # x * cos + rotate_half(x) * sin == x * cos + roll(x) * signed sin: one kernel less
            signed = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
            self._cos_sin = torch.stack([cos[0], signed[0]], dim=1)
        return self._cos_sin
