"""Acceptance head of SpecDec++ (arXiv 2405.19715): how likely the target accepts a draft token.

It reads the draft model's last hidden state at the token. Shapes: W rows, D hidden size, L blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class AcceptanceHead:
    """Residual blocks x + silu(x @ weight + bias), then a linear layer to the logit of "accepted"; in float32.

    blocks   `[D, D]` and `[D]` of each block
    out      `[D]` and `[1]`
    """

    blocks: Sequence[tuple[Tensor, Tensor]]
    out: tuple[Tensor, Tensor]

    def predict_logits(self, hidden_WD: Tensor) -> Tensor:
        """Returns `[W]`; the probability of acceptance is their sigmoid."""
        x = hidden_WD.float()
        for weight, bias in self.blocks:
            x = x + F.silu(torch.addmm(bias, x, weight))
        weight_D, bias_1 = self.out
        return x @ weight_D + bias_1

    def to_device(self, device: torch.device) -> AcceptanceHead:
        """Returns the head there."""
        weight_D, bias_1 = self.out
        return AcceptanceHead(
            [(weight.to(device), bias.to(device)) for weight, bias in self.blocks],
            (weight_D.to(device), bias_1.to(device)),
        )
