"""What a model is trained to do with a batch: predict tokens, or judge them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy

from reason.training.examples import IGNORE

STEP_END_WEIGHT = 4.0  # a verdict is read at the end of a step, so that is where it counts most


def language_loss(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    """Mean cross entropy of the solution's tokens under a causal language model."""
    logits = model(input_ids=batch["ids"], use_cache=False).logits
    return _mean_loss(logits, batch["next_ids"]), {}


def verdict_loss(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    """Judge every token of a solution: is everything up to here right?

    Weighted cross entropy; a step's last token, where a reward model is read, counts `STEP_END_WEIGHT` times. The
    verdict on every single number in between is what makes the task learnable from few tokens.
    """
    logits = model(input_ids=batch["ids"], use_cache=False).logits
    ends = batch["step_end"]
    with torch.no_grad():
        said = logits[ends].argmax(-1) == batch["verdicts"][ends]
    weights = 1 + (STEP_END_WEIGHT - 1) * ends
    return _mean_loss(logits, batch["verdicts"], weights), {"step_accuracy": said.float().mean().item()}


def _mean_loss(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Weighted mean cross entropy over the targets that are not IGNORE; 0 when none is left."""
    losses = cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE, reduction="none")
    counts = (targets != IGNORE) * weights
    return (losses * counts.flatten()).sum() / counts.sum().clamp(min=1)
